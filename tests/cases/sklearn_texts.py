"""Writes sklearn-texts-VERSION.json.gz: models of texts, as sklearn_tables.py writes those of tables.

pip install scikit-learn==1.9.1 pandas && python tests/cases/sklearn_texts.py
pip install scikit-learn==1.2.2 "numpy<2" "pandas<2.3" && python tests/cases/sklearn_texts.py
"""

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.feature_selection import SelectKBest, chi2
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import BernoulliNB, ComplementNB, MultinomialNB
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, Normalizer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn_tables import write

random = np.random.RandomState(1)
TOPICS = {
    "sport": "goal match team player coach season league score win defeat stadium cup final",
    "space": "rocket orbit moon launch probe planet star telescope crew station mission engine",
    "politique": "\u00e9lection pr\u00e9sident vote loi parlement d\u00e9bat minist\u00e8re r\u00e9forme",
    "food": "recipe oven butter sugar flour cr\u00e8me br\u00fbl\u00e9e dinner chef kitchen taste",
}
COMMON = "the a of and in to is was for on with that it as by at from this its has 2 10 1999 it's"
LABELS = np.array(list(TOPICS))
TOPIC = random.randint(0, len(TOPICS), 160)


def sentence(topic):
    words = random.choice(TOPICS[LABELS[topic]].split(), random.randint(2, 9)).tolist()
    words += random.choice(COMMON.split(), random.randint(3, 9)).tolist()
    random.shuffle(words)
    text = random.choice([" ", " ", "  ", ", "]).join(words)
    return random.choice([str.lower, str.capitalize, str.upper])(text) + random.choice(
        [".", "!", ""]
    )


TEXTS = [sentence(topic) for topic in TOPIC]
STRANGE = [
    "",
    " ",
    "zzz qqq xyzzy",
    "GOAL goal Goal gOaL",
    "\u00c9LECTION e\u0301lection \u00e9lection election",
    "cre\u0300me bru\u0302le\u0301e \ufb01nal",
    "\u0130stanbul STRASSE \u00df \u03a3\u03a3 \u03c2",
    "tab\tseparated\nlines\r\nand\x1fodd\x1cspaces\u3000wide\u00a0hard",
    "moon_base moon-base moon's x\u00b2 \u00bd \u2160 \u0663\u0664 \u24b6bc",
    "\u6708\u7403 \u30ed\u30b1\u30c3\u30c8 rocket\u30ed\u30b1\u30c3\u30c8 \u0e08\u0e23\u0e27\u0e14",
    "\U0001f680 launch\U0001f680launch \u200dstar\u200d \u203fcup\u203f",
    "a b c d of the and 2 10 1999",
    "win " * 300,
    "\u0939\u093f\u0928\u094d\u0926\u0940 chef",
]
DOCUMENTS = TEXTS[::4] + STRANGE


def logistic():
    return LogisticRegression(max_iter=300)


def vectorizers():
    yield CountVectorizer(dtype=np.float64), logistic()
    yield CountVectorizer(binary=True, min_df=2, stop_words="english"), BernoulliNB()
    yield CountVectorizer(ngram_range=(1, 3), max_features=80), MultinomialNB()
    yield CountVectorizer(ngram_range=(2, 2), stop_words=["the", "of"], min_df=2), ComplementNB()
    yield CountVectorizer(analyzer="char", ngram_range=(2, 3), max_features=120), logistic()
    yield CountVectorizer(analyzer="char_wb", ngram_range=(1, 5), max_features=120), logistic()
    yield CountVectorizer(analyzer="char", lowercase=False, max_features=40), logistic()
    yield CountVectorizer(vocabulary=["moon", "goal", "cr\u00e8me"]), logistic()
    yield TfidfVectorizer(), LinearSVC(random_state=0)
    yield (
        TfidfVectorizer(sublinear_tf=True, stop_words="english", ngram_range=(1, 2), min_df=2),
        (LinearSVC(random_state=0)),
    )
    yield TfidfVectorizer(strip_accents="unicode", norm="l1"), logistic()
    yield TfidfVectorizer(strip_accents="ascii", use_idf=False), SGDClassifier(random_state=0)
    log_loss = SGDClassifier(random_state=0, loss="modified_huber")
    yield TfidfVectorizer(smooth_idf=False, norm=None, binary=True), log_loss
    yield TfidfVectorizer(lowercase=False, min_df=2), MultinomialNB()
    for pattern in (
        r"\b\w+\b",
        r"(?u)\w{3,}",
        r"[a-z']+",
        r"\S+",
        r"\b([^\W\d_]\w+)",
        r"\d+|[A-Za-z]+",
    ):
        yield TfidfVectorizer(token_pattern=pattern), logistic()
    yield HashingVectorizer(n_features=64), logistic()
    yield HashingVectorizer(n_features=50, alternate_sign=False, norm="l1"), MultinomialNB()
    yield HashingVectorizer(n_features=64, binary=True, norm=None, ngram_range=(1, 2)), logistic()


def news():
    for vectorizer, last in vectorizers():
        yield make_pipeline(vectorizer, last)
    counts = CountVectorizer(min_df=2)
    yield make_pipeline(counts, TfidfTransformer(sublinear_tf=True), LinearSVC(random_state=0))
    yield make_pipeline(counts, TfidfTransformer(use_idf=False, norm=None), logistic())
    words = TfidfVectorizer(min_df=2)
    parts = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 3), max_features=100)
    both = FeatureUnion([("w", words), ("c", parts)], transformer_weights={"c": 0.5})
    yield make_pipeline(both, logistic())
    svd = TruncatedSVD(5, random_state=0)
    yield make_pipeline(words, svd, Normalizer(), logistic())
    yield make_pipeline(
        words, FeatureUnion([("s", svd), ("k", SelectKBest(chi2, k=9))]), logistic()
    )
    yield make_pipeline(words, SelectKBest(chi2, k=20), LinearSVC(random_state=0))
    yield make_pipeline(words, StandardScaler(with_mean=False), logistic())
    yield make_pipeline(counts, MaxAbsScaler(), Normalizer("l1"), logistic())
    yield make_pipeline(words, RandomForestClassifier(3, max_depth=4, random_state=0))
    votes = [("a", logistic()), ("b", MultinomialNB())]
    yield make_pipeline(words, VotingClassifier(votes, voting="soft"))


def mixed():
    """A table with texts, categories and numbers."""
    table = pd.DataFrame({"title": [text[:20] for text in TEXTS], "body": TEXTS})
    table["length"] = [float(len(text)) if len(text) % 5 else np.nan for text in TEXTS]
    rows = pd.DataFrame({"title": [text[:20] for text in DOCUMENTS], "body": DOCUMENTS})
    rows["length"] = [float(len(text)) if len(text) % 3 else np.nan for text in DOCUMENTS]
    columns = ColumnTransformer(
        [
            ("body", TfidfVectorizer(min_df=2), "body"),
            ("title", CountVectorizer(min_df=2), "title"),
            ("length", make_pipeline(SimpleImputer(), StandardScaler()), ["length"]),
        ]
    )
    yield make_pipeline(columns, logistic()), table, LABELS[TOPIC], rows
    yield make_pipeline(columns, Ridge()), table, TOPIC * 1.5, rows


def texts():
    for number, model in enumerate(news()):
        target = TOPIC if number % 2 else LABELS[TOPIC]
        yield model, TEXTS, target, DOCUMENTS
    yield make_pipeline(TfidfVectorizer(), LinearSVC(random_state=0)), TEXTS, TOPIC > 1, DOCUMENTS
    yield make_pipeline(TfidfVectorizer(), Ridge()), TEXTS, TOPIC * 1.0, DOCUMENTS
    yield from mixed()


if __name__ == "__main__":
    write("texts", texts())
