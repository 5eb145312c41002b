//! The table of formats. The first that fits counts. docs/platforms/other-formats.md says which commands were run,
//! and with which versions.

use super::ForeignFormat;
use super::RecognisedBy::{Content, Ending, Folder};

const HDF5: &[u8] = b"\x89HDF\r\n\x1a\n";

/// An object that Java serialized.
const JAVA: &[u8] = b"\xac\xed\0\x05";

/// How R's objects begin: compressed with gzip, bzip2 or xz, or not compressed.
const R_OBJECTS: [&[u8]; 7] =
    [b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"RDX", b"RDA", b"X\n\0\0", b"A\n"];

pub(super) const FORMATS: &[ForeignFormat] = &[
    ForeignFormat {
        what: "a file that Git LFS has not fetched: it has the name of the model's content only",
        by: Content(
            &[
                ".onnx",
                ".pt",
                ".pth",
                ".pt2",
                ".pte",
                ".bin",
                ".h5",
                ".safetensors",
                ".pb",
                ".gguf",
                ".tflite",
                ".pkl",
                ".joblib",
                ".zip",
            ],
            |file| file.has(0, b"version https://git-lfs.github.com/spec/"),
        ),
        way_on: "In its repository, run `git lfs pull`",
    },
    ForeignFormat {
        what: "a Keras model, which only Keras runs",
        by: Content(&[".keras"], |file| {
            file.is_archive_of("model.weights.h5") || file.is_archive_of("metadata.json")
        }),
        way_on: KERAS,
    },
    ForeignFormat {
        what: "a model of Keras in HDF5, which only Keras runs",
        by: Content(&[".h5", ".hdf5"], |file| file.has(0, HDF5)),
        way_on: KERAS,
    },
    ForeignFormat {
        what: "a folder of Hugging Face with the changes to a model (an adapter), without the model",
        by: Folder(|folder| folder.holds("adapter_config.json")),
        way_on: "Merge it into its model with `pip install peft torch transformers && python3 -c 'import sys; \
                 from peft import AutoPeftModelForCausalLM as M; \
                 M.from_pretrained(sys.argv[1]).merge_and_unload().save_pretrained(sys.argv[2])' {path} \
                 {path}-merged`, and convert that folder to ONNX: `tensorserve inspect {path}-merged` has the \
                 command",
    },
    ForeignFormat {
        what: "a folder of Hugging Face, whose weights need the program of the model",
        by: Folder(|folder| {
            let weights = [
                "model.safetensors",
                "model.safetensors.index.json",
                "pytorch_model.bin",
                "pytorch_model.bin.index.json",
                "tf_model.h5",
            ];
            folder.holds("config.json") && weights.iter().any(|name| folder.holds(name))
        }),
        way_on: "Convert it to ONNX with `pip install 'optimum-onnx[onnxruntime]' && optimum-cli export \
                 onnx --task {task} --model {path} {path}-onnx`, and serve {path}-onnx/model.onnx",
    },
    ForeignFormat {
        what: "a pipeline of Hugging Face's diffusers, which is a program in Python",
        by: Folder(|folder| folder.holds("model_index.json")),
        way_on: "Convert its parts to ONNX with `pip install 'optimum-onnx[onnxruntime]' diffusers && \
                 optimum-cli export onnx --model {path} {path}-onnx`, and serve the model.onnx of each folder \
                 in {path}-onnx; your program calls one after the other",
    },
    ForeignFormat {
        what: "a pipeline of spaCy, which is a program in Python",
        by: Folder(|folder| folder.holds("meta.json") && folder.holds("config.cfg")),
        way_on: PYTHON_ONLY,
    },
    ForeignFormat {
        what: "a file of weights without the program that uses them",
        by: Content(&[".safetensors"], |file| {
            file.has(8, b"{\"") && file.head.get(4..8).is_some_and(|high| high == [0; 4])
        }),
        way_on: "For a model of Hugging Face, convert its folder to ONNX with `pip install \
                 'optimum-onnx[onnxruntime]' && optimum-cli export onnx --task {task} --model {folder} {folder}-onnx`, \
                 and serve {folder}-onnx/model.onnx. Otherwise load the weights in the program that made \
                 them, and export from there (`pip install onnxscript`): `torch.onnx.export(model, \
                 (example,), 'model.onnx', dynamo=True)`",
    },
    ForeignFormat {
        what: "a language model of llama.cpp",
        by: Content(&[".gguf"], |file| file.has(0, b"GGUF")),
        way_on: "It cannot be converted back. llama.cpp serves it: `llama-server --model {path}`; or convert \
                 the original folder of Hugging Face to ONNX with `pip install 'optimum-onnx[onnxruntime]' && \
                 optimum-cli export onnx --task text-generation --model FOLDER FOLDER-onnx`",
    },
    ForeignFormat {
        what: "a model of ONNX Runtime in its own format",
        by: Content(&[".ort"], |file| file.has(4, b"ORTM")),
        way_on: "It cannot be converted back: serve the ONNX file that it was made of",
    },
    ForeignFormat {
        what: "a model of ONNX as text",
        by: Ending(&[".textproto", ".prototxt", ".pbtxt", ".onnxtxt", ".onnxtext"], |file| {
            file.mentions("ir_version")
                && (file.mentions("graph {") || file.mentions("opset_import"))
        }),
        way_on: ONNX_TEXT,
    },
    ForeignFormat {
        what: "a model of ONNX in JSON",
        by: Ending(&[".json", ".onnxjson"], |file| {
            file.mentions("\"irVersion\"") || file.mentions("\"ir_version\"")
        }),
        way_on: ONNX_TEXT,
    },
    ForeignFormat {
        what: "an engine of TensorRT, which runs on the GPU and the version of TensorRT that it was built for",
        by: Ending(&[".engine", ".plan", ".trt"], |_| true),
        way_on: "It cannot be converted back: serve the ONNX file that it was built from",
    },
    ForeignFormat {
        what: "a model of PaddlePaddle",
        by: Ending(&[".pdmodel"], |_| true),
        way_on: "Convert it to ONNX with `pip install paddlepaddle paddle2onnx packaging && paddle2onnx \
                 --model_dir {folder} --model_filename {name} --params_filename {name_stem}.pdiparams \
                 --save_file {stem}.onnx`, and serve {stem}.onnx",
    },
    ForeignFormat {
        what: "a model of PaddlePaddle",
        by: Ending(&[".json"], |file| file.is_beside("pdiparams") && file.mentions("\"program\"")),
        way_on: "Convert it to ONNX with `pip install paddlepaddle paddle2onnx packaging && paddle2onnx \
                 --model_dir {folder} --model_filename {name} --params_filename {name_stem}.pdiparams \
                 --save_file {stem}.onnx`, and serve {stem}.onnx",
    },
    ForeignFormat {
        what: "parameters of PaddlePaddle without the model's program",
        by: Ending(&[".pdparams"], |_| true),
        way_on: "In the program that made them, call `paddle.jit.save(model, 'model', \
                 input_spec=[paddle.static.InputSpec([None, 4], 'float32')])` with the shapes of its inputs; \
                 `tensorserve inspect model.json` then has the command that converts it to ONNX",
    },
    ForeignFormat {
        what: "a model of Core ML",
        by: Ending(&[".mlmodel"], |_| true),
        way_on: "Convert it to ONNX with Python 3.10: `pip install coremltools==6.3.0 onnxmltools==1.11.2 \
                 skl2onnx==1.14.1 onnxconverter-common==1.13.0 'onnx<1.15' 'numpy<1.24' 'protobuf<4' && \
                 python3.10 -c 'import sys, onnx, coremltools as c, onnxmltools as o; \
                 onnx.save(o.convert_coreml(c.utils.load_spec(sys.argv[1])), sys.argv[2])' {path} \
                 {stem}.onnx`, and serve {stem}.onnx. An ML program (iOS 15 and later) cannot be converted: \
                 export the model that it was made of to ONNX",
    },
    ForeignFormat {
        what: "a package of Core ML",
        by: Folder(|folder| {
            folder.holds("Manifest.json")
                && folder.path.extension().is_some_and(|ending| ending == "mlpackage")
        }),
        way_on: "It cannot be converted: export the model that it was made of to ONNX",
    },
    ForeignFormat {
        what: "a model of Caffe",
        by: Ending(&[".caffemodel"], |_| true),
        way_on: "Convert it to ONNX with Python 3.7: `pip install caffe2onnx 'protobuf<3.21' && python3.7 -m \
                 caffe2onnx.convert --prototxt {folder}/deploy.prototxt --caffemodel {path} --onnx \
                 {stem}.onnx`, and serve {stem}.onnx",
    },
    ForeignFormat {
        what: "a model of Caffe2",
        by: Folder(|folder| folder.holds("predict_net.pb") && folder.holds("init_net.pb")),
        way_on: CAFFE2,
    },
    ForeignFormat {
        what: "a model of CNTK",
        by: Content(&[".model", ".dnn", ".cntk"], |file| {
            file.has(0, b"B\0C\0N\0")
                || (file.mentions("CompositeFunction") && file.mentions("uid"))
        }),
        way_on: "Convert it to ONNX with Python 3.6, the last that CNTK has: `pip install cntk && python3.6 -c \
                 'import cntk, sys; cntk.Function.load(sys.argv[1]).save(sys.argv[2], \
                 format=cntk.ModelFormat.ONNX)' {path} {stem}.onnx`, and serve {stem}.onnx. CNTK needs the \
                 libraries libmpi.so.12 and libmpi_cxx.so.1 of Open MPI 1.10; with `apt-get install \
                 libopenmpi3`, links of these names to libmpi.so.40 and libmpi_cxx.so.40 do",
    },
    ForeignFormat {
        what: "parameters of MXNet without the symbol of their model",
        by: Ending(&[".params"], |file| file.has(0, &[0x12, 1, 0, 0, 0, 0, 0, 0])),
        way_on: "In the program that made them, call `net.hybridize()`, run the net once, and call \
                 `net.export('model')`: tensorserve serves the model-symbol.json and model-0000.params that \
                 this writes",
    },
    ForeignFormat {
        what: "a model of TensorFlow.js, of Keras's layers",
        by: Ending(&[".json"], |file| {
            file.mentions("\"modelTopology\"")
                && (file.mentions("layers-model") || file.mentions("keras_version"))
        }),
        way_on: TFJS_LAYERS,
    },
    ForeignFormat {
        what: "a model of TensorFlow.js, of a graph",
        by: Ending(&[".json"], |file| {
            file.mentions("graph-model")
                && (file.mentions("\"format\"") || file.mentions("\"modelTopology\""))
        }),
        way_on: TFJS_GRAPH,
    },
    ForeignFormat {
        what: "a checkpoint of TensorFlow 1: the values of variables beside the graph",
        by: Ending(&[".index", ".meta"], |file| {
            file.is_beside("meta") && file.is_beside("index") && file.is_beside("data-00000-of-*")
        }),
        way_on: "Freeze the graph, with the names of its outputs (operations, with commas between them) in \
                 place of OUTPUTS: `pip install tensorflow && python3 -m \
                 tensorflow.python.tools.freeze_graph --input_meta_graph={stem}.meta \
                 --input_checkpoint={stem} --input_binary=true --output_node_names=OUTPUTS \
                 --output_graph={stem}.pb`, and serve {stem}.pb",
    },
    ForeignFormat {
        what: "a checkpoint of TensorFlow: the values of variables without the graph",
        by: Ending(&[".index"], |file| file.is_beside("data-00000-of-*")),
        way_on: "In the program that made it, restore it and export a SavedModel: \
                 `tf.train.Checkpoint(model=model).restore(PATH)`, then `model.export('model')` for Keras \
                 or `tf.saved_model.save(model, 'model')`; and serve model",
    },
    ForeignFormat {
        what: "an archive of TorchServe",
        by: Content(&[".mar"], |file| file.is_archive_of("MAR-INF/MANIFEST.json")),
        way_on: "Unpack it with `unzip {path} -d {stem}`, and serve the .pt or .onnx file in it; what its \
                 handler does before and after the model goes into a tensorserve.toml (docs/preprocessing.md) \
                 or an inference.py (docs/sagemaker.md)",
    },
    ForeignFormat {
        what: "an archive of a SavedModel",
        by: Content(&[".zip"], |file| file.is_archive_of("saved_model.pb")),
        way_on: "Unpack it with `unzip {path} -d {stem}`, and serve the folder with saved_model.pb in it",
    },
    ForeignFormat {
        what: "an archive",
        by: Ending(&[".tar.gz", ".tgz"], |file| file.has(0, b"\x1f\x8b")),
        way_on: "Unpack it with `mkdir -p {stem}.d && tar -xzf {path} -C {stem}.d`, and serve what is in \
                 {stem}.d",
    },
    ForeignFormat {
        what: "an R object",
        by: Ending(&[".rds"], |file| R_OBJECTS.iter().any(|head| file.has(0, head))),
        way_on: R_RDS,
    },
    ForeignFormat {
        what: "a workspace of R",
        by: Ending(&[".rdata", ".rda"], |file| R_OBJECTS.iter().any(|head| file.has(0, head))),
        way_on: R_DATA,
    },
    ForeignFormat {
        what: "a model of Weka, an object of Java",
        by: Content(&[".model"], |file| file.has(0, JAVA) && file.mentions("weka.")),
        way_on: "It cannot be converted: train the model with H2O, XGBoost or scikit-learn, whose files are \
                 served",
    },
    ForeignFormat {
        what: "an object of Java",
        by: Content(&[".model", ".ser"], |file| file.has(0, JAVA)),
        way_on: "It cannot be converted. Save the model with its library, as PMML if it can",
    },
    ForeignFormat {
        what: "a model of Vowpal Wabbit",
        by: Content(&[".vw", ".model"], |file| file.is_vowpal_wabbit()),
        way_on: PYTHON_ONLY,
    },
    ForeignFormat {
        what: "a model of fastText",
        by: Content(&[".bin", ".ftz"], |file| file.has(0, &[0xba, 0x16, 0x4f, 0x2f])),
        way_on: PYTHON_ONLY,
    },
    ForeignFormat {
        what: "a checkpoint of Treelite",
        by: Ending(&[".tl"], |_| true),
        way_on: "It cannot be converted back: serve the file of XGBoost, LightGBM or scikit-learn that it was \
                 made of",
    },
    ForeignFormat {
        what: "a model in BentoML's store, of a framework that is not served",
        by: Folder(|folder| {
            folder.holds("model.yaml") && folder.file_mentions("model.yaml", "bentoml")
        }),
        way_on: "Load it with `bentoml.models.get('NAME:VERSION')` in Python, and export it to ONNX or a \
                 SavedModel",
    },
    ForeignFormat {
        what: "a Bento, which is a service in Python",
        by: Folder(|folder| folder.holds("bento.yaml")),
        way_on: "Serve the model in it: `tensorserve serve` on a folder of {path}/models, or on the folder \
                 that `bentoml models get NAME:VERSION -o path` prints",
    },
    ForeignFormat {
        what: "a model of Triton's Python backend",
        by: Ending(&["model.py"], |file| file.mentions("TritonPythonModel")),
        way_on: "Write its execute function as a handler in an inference.py (docs/sagemaker.md)",
    },
];

const KERAS: &str = "Convert it to a SavedModel with `pip install tensorflow && tensorserve convert --with-python \
                     {path} {stem}`, and serve {stem}";

const ONNX_TEXT: &str = "Convert it with `pip install onnx && python3 -c 'import onnx, sys; \
                         onnx.save(onnx.load(sys.argv[1]), sys.argv[2])' {path} {stem}.onnx`, and serve \
                         {stem}.onnx";

const PYTHON_ONLY: &str = "It cannot be converted: only its own library runs it. Load it in a handler in Python, \
                           an inference.py (docs/sagemaker.md)";

const CAFFE2: &str = "Convert it to ONNX with Python 3.7, with the names and shapes of its inputs in place of \
                      data and its shape (1 is float): `pip install torch==1.4.0 onnx==1.6.0 'protobuf<3.21' \
                      future 'click<8.1' && convert-caffe2-to-onnx {path}/predict_net.pb --caffe2-init-net \
                      {path}/init_net.pb --value-info '{\"data\": [1, [1, 3, 224, 224]]}' -o \
                      {path}/model.onnx`, and serve {path}/model.onnx";

const TFJS_LAYERS: &str = "Convert it to a SavedModel with Python 3.10 or 3.11: `pip install \
                           tensorflowjs==4.22.0 tensorflow==2.15.1 tensorflow_decision_forests==1.8.1 \
                           'numpy<2' 'jax<0.5' 'setuptools<81' && tensorflowjs_converter \
                           --input_format=tfjs_layers_model --output_format=keras_saved_model {path} \
                           {stem}`, and serve {stem}";

const TFJS_GRAPH: &str = "Convert it to a SavedModel with Python 3.10 or 3.11: `pip install \
                          tfjs-graph-converter tensorflowjs==4.22.0 tensorflow==2.15.1 \
                          tensorflow_decision_forests==1.8.1 'numpy<2' 'jax<0.5' 'setuptools<81' && \
                          tfjs_graph_converter {path} {stem} --output_format tf_saved_model`, and serve {stem}";

const R_RDS: &str = "Save the model in a format of its library; one of XGBoost with `Rscript -e 'a <- \
                     commandArgs(TRUE); xgboost::xgb.save(readRDS(a[1]), a[2])' {path} {stem}.ubj`, and serve \
                     {stem}.ubj. In place of xgboost::xgb.save, other libraries have lightgbm::lgb.save \
                     (.txt), catboost::catboost.save_model (.cbm), and r2pmml::r2pmml (.pmml) for models of R \
                     itself";

const R_DATA: &str = "Save the model in a format of its library; one of XGBoost, with the name MODEL, with \
                      `Rscript -e 'a <- commandArgs(TRUE); load(a[1]); xgboost::xgb.save(MODEL, a[2])' {path} \
                      {stem}.ubj`, and serve {stem}.ubj. In place of xgboost::xgb.save, other libraries have \
                      lightgbm::lgb.save (.txt), catboost::catboost.save_model (.cbm), and r2pmml::r2pmml \
                      (.pmml) for models of R itself";
