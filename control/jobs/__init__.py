"""The life of a training job, from submission to its end."""
