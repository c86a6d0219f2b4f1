"""Which estimator of advantages credits the right turn?"""
