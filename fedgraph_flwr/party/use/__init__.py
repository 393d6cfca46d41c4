"""Use of a trained model: predictions, exports."""
