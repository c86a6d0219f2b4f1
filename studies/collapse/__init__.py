"""Which methods survive a large learning rate, and what announces a collapse?"""
