"""Use a trained model: answers for texts and files, evaluations and their results."""
