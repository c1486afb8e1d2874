"""What fits when: quanta, cost models, deadlines, budgets. Plain Python, no tensors."""
