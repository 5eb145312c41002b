"""Makes the Parquet files of this folder with pyarrow 26: the same row, laid out in different ways;
and one whose text takes far more than the file."""

import pyarrow as pa
import pyarrow.parquet as pq

values = [0.0] * 900 + [float(i % 7) for i in range(300)]
row = {
    "v": {"type": 1, "size": None, "values": values, "indices": None},
    "yes": True,
    "flags": [i % 3 == 0 for i in range(50)],
    "count": 1 << 40,
    "half": 0.5,
    "name": "text",
}
schema = pa.schema(
    [
        (
            "v",
            pa.struct(
                [
                    ("type", pa.int8()),
                    ("size", pa.int32()),
                    ("values", pa.list_(pa.float64())),
                    ("indices", pa.list_(pa.int32())),
                ]
            ),
        ),
        ("yes", pa.bool_()),
        ("flags", pa.list_(pa.bool_())),
        ("count", pa.int64()),
        ("half", pa.float32()),
        ("name", pa.string()),
    ]
)
table = pa.Table.from_pylist([row], schema)
for version in ("1.0", "2.0"):
    for name, packing in (("plain", "none"), ("packed", "snappy")):
        for dictionary in (True, False):
            pq.write_table(
                table,
                f"{name}_{version[0]}{'_dictionary' if dictionary else ''}.parquet",
                compression=packing,
                use_dictionary=dictionary,
                data_page_version=version,
                data_page_size=1024,
                write_batch_size=64,
            )
pq.write_table(table, "gzip.parquet", compression="gzip")

# A dictionary of one long text, which 200 rows have.
pq.write_table(
    pa.table({"text": ["a" * 1_000_000] * 200}),
    "long_texts.parquet",
    compression="zstd",
    compression_level=19,
    write_statistics=False,
    dictionary_pagesize_limit=1 << 30,
    store_schema=False,
)
