//! Integration tests: complete servers on free ports, with clients over sockets.
//!
//! * `fake` platform: batching, lifecycle and protocols without libtensorflow;
//! * real models: the responses of the reference servers, case by case.
//!
//! Tests of a platform are compiled with its feature. Every build includes TensorFlow.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

mod auth;
mod auth_command;
mod bad_examples;
mod bad_forms;
mod bad_grpc;
mod bad_http;
mod bad_messages;
mod bad_models;
mod bad_sizes;
mod bad_values;
mod batch_faults;
mod batch_threads;
mod batching;
mod bench;
#[cfg(feature = "catboost")]
mod catboost;
mod certificates;
mod changing_files;
mod cli;
mod clients;
mod compare;
mod console;
mod console_admin;
mod containers;
mod csv_reports;
mod deadlines;
mod digits;
#[cfg(all(feature = "onnx", feature = "tflite"))]
mod endless;
mod engines;
mod entry_points;
mod external_ops;
mod fetch_command;
mod foreign_formats;
mod given_up;
mod grpc_panics;
#[cfg(feature = "h2o")]
mod h2o;
mod https;
mod isolation;
mod joining;
mod large_requests;
mod large_responses;
mod library_search;
mod lifecycle;
#[cfg(feature = "lightgbm")]
mod lightgbm;
mod live_batching;
mod load_probe;
mod memory;
mod memory_attacks;
#[cfg(all(feature = "onnx", feature = "xgboost", feature = "sklearn", feature = "spark"))]
mod missing_values;
mod mlflow;
mod model_files;
mod model_server;
mod model_server_models;
mod mutants;
mod npy;
mod odd_names;
mod odd_signatures;
mod on_request;
#[cfg(feature = "onnx")]
mod onnx;
mod open_inference_cases;
mod open_inference_streams;
mod openapi;
#[cfg(feature = "openvino")]
mod openvino;
mod operations;
mod optimize;
mod own_name;
mod page;
#[cfg(all(feature = "onnx", feature = "xgboost", feature = "mxnet"))]
mod platforms;
#[cfg(feature = "pmml")]
mod pmml;
mod priority;
mod probe_host;
mod protocol_reports;
#[cfg(feature = "python")]
mod python_models;
mod receipts;
mod releases;
mod reload;
mod reload_settings;
mod reload_sources;
mod replay;
#[cfg(all(feature = "lightgbm", feature = "sklearn"))]
mod reports;
mod request_log;
mod request_memory;
mod response_cache;
mod sagemaker_cases;
mod sagemaker_formats;
mod sagemaker_front;
mod sagemaker_handlers;
mod sagemaker_models;
mod sagemaker_service;
mod same_answers;
mod shadow;
mod signals;
mod simple_cases;
mod simple_front;
#[cfg(feature = "sklearn")]
mod sklearn;
#[cfg(feature = "sklearn")]
mod sklearn_tables;
mod sources;
#[cfg(feature = "spark")]
mod spark;
mod split;
mod steps;
mod stop;
mod stop_clients;
#[cfg(feature = "stores")]
mod store_faults;
#[cfg(feature = "stores")]
mod stores;
mod support;
mod tensorflow_files;
#[cfg(feature = "tflite")]
mod tflite;
mod tfs_binary;
mod tfs_cases;
mod tfs_metrics;
#[cfg(feature = "transform")]
mod transform;
mod transform_header;
mod transform_names;
mod transform_state;
mod transform_words;
mod tune;
#[cfg(all(
    feature = "catboost",
    feature = "h2o",
    feature = "lightgbm",
    feature = "onnx",
    feature = "pmml",
    feature = "sklearn",
    feature = "spark",
    feature = "tflite",
    feature = "xgboost"
))]
mod unary_calls;
mod unknown_names;
mod unset_variables;
mod warm_up;
mod warmup_command;
mod worker;
mod worker_threads;
#[cfg(feature = "xgboost")]
mod xgboost;
