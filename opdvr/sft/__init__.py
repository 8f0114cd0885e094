"""The off-policy cold start: a teacher's answers, filtered, as training data for the student."""
