"""Makes what the documentation calls titanic.csv and titanic.pkl: a table of passengers, and a model for it."""

import joblib
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

random = np.random.default_rng(1)
ages = random.integers(1, 80, 40).astype(float)
passengers = pd.DataFrame({"Sex": random.choice(["male", "female"], 40), "Age": ages})
survived = (passengers["Sex"] == "female") ^ (random.random(40) < 0.2)
passengers.loc[::7, "Age"] = np.nan

model = make_pipeline(
    make_column_transformer((OneHotEncoder(), ["Sex"]), (SimpleImputer(), ["Age"])),
    LogisticRegression(),
)
model.fit(passengers, survived.astype(int))
joblib.dump(model, "titanic.pkl")
passengers.to_csv("titanic.csv", index=False)
