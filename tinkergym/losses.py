"""Losses for pairs of answers, for `client.preference(data, loss=tg.losses.SimPO())`."""

from tinkergym.schema.preference_losses import DPO, IPO, ORPO, Hinge, SimPO

__all__ = ["DPO", "IPO", "ORPO", "Hinge", "SimPO"]
