"""A synthetic click log with a structure that a recommender can discover.

Every user has a hidden taste and every item a hidden style, both points in four
dimensions, and every item has its own appeal. The probability of a click is

    sigmoid(-1 + taste . style + appeal + weights . features + 0.8 * f5 * f6)

Features f0 to f4 act on their own, f5 and f6 only together, f7 to f12 are noise.
"""

import numpy as np

USERS = 1000
ITEMS = 2000
FEATURES = 13
ROWS = 600_000
HELD_OUT = 60_000
WEIGHTS = np.array([0.9, -0.7, 0.5, -0.4, 0.3] + [0.0] * 8)


def click_log():
    """A dict of columns, ROWS long; `chance` is the true click probability."""
    rng = np.random.default_rng(11)
    taste = rng.normal(0.0, 0.9, (USERS, 4))
    style = rng.normal(0.0, 0.9, (ITEMS, 4))
    appeal = rng.normal(0.0, 0.6, ITEMS)
    user = rng.integers(0, USERS, ROWS)
    item = rng.integers(0, ITEMS, ROWS)
    features = rng.normal(0.0, 1.0, (ROWS, FEATURES))
    match = np.sum(taste[user] * style[item], axis=1)
    together = 0.8 * features[:, 5] * features[:, 6]
    chance = 1.0 / (1.0 + np.exp(1.0 - match - appeal[item] - features @ WEIGHTS - together))
    return {
        "user_id": user.astype(np.int64),
        "item_id": item.astype(np.int64),
        "features": features.astype(np.float32),
        "clicked": (rng.random(ROWS) < chance).astype(np.float32),
        "chance": chance,
    }


def part(log, held_out):
    """The last HELD_OUT rows of a log, or all the rows before them."""
    rows = slice(-HELD_OUT, None) if held_out else slice(None, -HELD_OUT)
    return {name: column[rows] for name, column in log.items()}
