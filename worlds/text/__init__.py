"""Text adventures, households and questions, which the policy answers in words."""
