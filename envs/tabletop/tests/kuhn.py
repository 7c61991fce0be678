"""The equilibria of Kuhn poker."""

import pytest

tabletop = pytest.importorskip("tinkergym_tabletop.kuhn_poker")


def equilibrium(alpha):
    """The family of Kuhn's equilibria, by how often the first player bets with the jack."""

    def strategy(situation):
        card = next(i for i, name in enumerate(tabletop.CARDS) if name in situation.observations[0])
        passive, active = situation.legal
        first = situation.agent == "first"
        if active == "call":
            share = (0.0, alpha + 1 / 3 if first else 1 / 3, 1.0)[card]
        else:
            share = (alpha, 0.0, 3 * alpha)[card] if first else (1 / 3, 0.0, 1.0)[card]
        return {passive: 1 - share, active: share}

    return strategy
