"""Which models run where: what the operator wishes, what a model needs, and a plan for all of them.

Knows neither Ray nor torch.
"""
