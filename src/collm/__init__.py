"""Language-model serving that keeps learning, on one copy of the weights."""
