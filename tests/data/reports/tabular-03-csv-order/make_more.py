"""Writes models that know the names of their features, and their predictions for tables with other orders of columns.

xgboost 3.2, lightgbm 4.7, catboost 1.2, scikit-learn 1.9, mlflow 3.17
"""
import json, pickle
import catboost, lightgbm, numpy as np, pandas as pd, xgboost as xgb
from sklearn.linear_model import LinearRegression

r = np.random.default_rng(0)
X = pd.DataFrame(r.normal(size=(300, 3)), columns=["income", "age", "debt"])
y = X.income * 10 + X.age - X.debt * 3
row = X.iloc[[0]]
right = {}
b = lightgbm.train({"num_leaves": 5, "verbose": -1}, lightgbm.Dataset(X, y), 5)
b.save_model("named.lgb.txt"); right["named.lgb.txt"] = [float(b.predict(row)[0])]
b = lightgbm.train({"num_leaves": 5, "verbose": -1}, lightgbm.Dataset(X.values, y), 5)
b.save_model("unnamed.lgb.txt"); right["unnamed.lgb.txt"] = [float(b.predict(row.values)[0])]
c = catboost.CatBoostRegressor(iterations=10, depth=2, verbose=0, allow_writing_files=False).fit(X, y)
c.save_model("named.cbm"); right["named.cbm"] = [float(c.predict(row)[0])]
c = catboost.CatBoostRegressor(iterations=10, depth=2, verbose=0, allow_writing_files=False).fit(X.values, y)
c.save_model("unnamed.cbm"); right["unnamed.cbm"] = [float(c.predict(row.values)[0])]
c = catboost.CatBoostRegressor(iterations=10, depth=2, verbose=0, allow_writing_files=False).fit(pd.DataFrame({"gap": 1.0, **X}), y)
c.save_model("gap.cbm"); right["gap.cbm"] = [float(c.predict(pd.DataFrame({"gap": 1.0, **row}))[0])]
N = pd.DataFrame(X.values, columns=[0, 1, 2])
b = xgb.train({"max_depth": 2}, xgb.DMatrix(N, y), 5)
b.save_model("numbered.json"); right["numbered.json"] = [float(b.predict(xgb.DMatrix(N.iloc[[0]]))[0])]
m = LinearRegression().fit(X, y)
pickle.dump(m, open("frame.pkl", "wb")); right["frame.pkl"] = [float(m.predict(row)[0])]
json.dump(right, open("more.json", "w"), indent=1)
