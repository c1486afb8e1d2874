"""What the slow loop knows and decides: estimates, and the program that shares out a round."""
