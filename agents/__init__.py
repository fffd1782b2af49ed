"""Agents, the models and tools they use, and the runners that run them."""
