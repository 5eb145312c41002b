"""recommender: the chance that a user clicks an item, from two ids and 13 features."""

import tensorflow as tf
from sklearn.metrics import roc_auc_score

import clicks_data
from common import Dense, export, fit, load, make_repeatable, output_root

WIDTH = 16


class Embedding(tf.Module):
    """One vector for each known id, and a last one for every other id."""

    def __init__(self, name, known):
        super().__init__(name=name)
        self.known = known
        start = tf.random.normal([known + 1, WIDTH], stddev=0.1)
        self.table = tf.Variable(start, name=f"{name}/table")

    def __call__(self, ids):
        is_known = tf.logical_and(ids >= 0, ids < self.known)
        return tf.gather(self.table, tf.where(is_known, ids, tf.constant(self.known, tf.int64)))


class Recommender(tf.Module):
    def __init__(self):
        super().__init__()
        self.users = Embedding("users", clicks_data.USERS)
        self.items = Embedding("items", clicks_data.ITEMS)
        self.first = Dense("first", 3 * WIDTH + clicks_data.FEATURES, 64)
        self.second = Dense("second", 64, 32)
        self.last = Dense("last", 32, 1, relu=False)

    def logits(self, user_id, item_id, features):
        user, item = self.users(user_id), self.items(item_id)
        # With the product, a network this small can learn how well a user and an item match.
        x = tf.concat([user, item, user * item, features], axis=1)
        return tf.squeeze(self.last(self.second(self.first(x))), axis=1)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, name="user_id"),
            tf.TensorSpec([None], tf.int64, name="item_id"),
            tf.TensorSpec([None, clicks_data.FEATURES], tf.float32, name="features"),
        ]
    )
    def serve(self, user_id, item_id, features):
        return {"score": tf.sigmoid(self.logits(user_id, item_id, features))}


def hide_some(ids):
    """Turns one id in fifty into an unknown one, so that its vector is trained too."""
    return tf.where(tf.random.uniform(tf.shape(ids)) < 0.02, tf.constant(-1, tf.int64), ids)


def train(model, log):
    def loss_of(user_id, item_id, features, clicked):
        logits = model.logits(hide_some(user_id), hide_some(item_id), features)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(clicked, logits))

    columns = [log[name] for name in ("user_id", "item_id", "features", "clicked")]
    fit(loss_of, model.trainable_variables, columns, epochs=8, batch=1024, rate=1e-2, decay=0.5)


def main():
    folder = output_root() / "models/recommender/1"
    log = clicks_data.click_log()
    make_repeatable(41)
    model = Recommender()
    train(model, clicks_data.part(log, held_out=False))
    export(model, folder)
    test = clicks_data.part(log, held_out=True)
    inputs = {name: test[name] for name in ("user_id", "item_id", "features")}
    score = load(folder)(**inputs)["score"]
    print(f"recommender/1: held-out AUC {roc_auc_score(test['clicked'], score):.4f}")
    print(f"best possible: held-out AUC {roc_auc_score(test['clicked'], test['chance']):.4f}")


if __name__ == "__main__":
    main()
