//! Reads the profile of a traced run.

use prost::Message;

use tensorserve_platform::OpRun;
use tensorserve_proto::tensorflow::{NodeExecStats, RunMetadata};
use tensorserve_tensor::error::{Code, Error, Result};

/// The largest profile in bytes. A loop can run an operation millions of times, and a profile of
/// that helps nobody.
const MAX_PROFILE: usize = 64 << 20;

const NANOS_PER_MICRO: i64 = 1000;

/// The run of each operation, from a serialized `RunMetadata`.
pub(super) fn read(metadata: &[u8]) -> Result<Vec<OpRun>> {
    if metadata.len() > MAX_PROFILE {
        let (size, limit) = (metadata.len() >> 20, MAX_PROFILE >> 20);
        return Err(Error::new(
            Code::ResourceExhausted,
            format!("the profile of this run has {size} MiB; at most {limit} MiB are allowed"),
        ));
    }
    let metadata = RunMetadata::decode(metadata)
        .map_err(|e| Error::internal("the runtime's profile is invalid").with_source(e))?;
    let mut runs = Vec::new();
    for device in metadata.step_stats.unwrap_or_default().dev_stats {
        // A GPU reports each kernel for its stream, and again for all streams together.
        let is_stream = device.device.contains("/stream:");
        if is_stream && !device.device.ends_with("/stream:all") {
            continue;
        }
        for node in device.node_stats {
            runs.push(op_run(node, is_stream));
        }
    }
    Ok(runs)
}

fn op_run(node: NodeExecStats, on_accelerator: bool) -> OpRun {
    let micros = node.op_end_rel_micros.saturating_sub(node.op_start_rel_micros);
    let nanos = node.op_end_rel_nanos.saturating_sub(node.op_start_rel_nanos);
    let nanos = if nanos > 0 { nanos } else { micros.saturating_mul(NANOS_PER_MICRO) };
    let bytes = node.memory.iter().fold(0i64, |sum, m| sum.saturating_add(m.total_bytes));
    OpRun {
        op: op_of(&node.timeline_label).unwrap_or(&node.node_name).to_owned(),
        node: node.node_name,
        nanos: u64::try_from(nanos).unwrap_or(0),
        bytes: u64::try_from(bytes).unwrap_or(0),
        on_accelerator,
    }
}

/// The operation of a label such as `dense/MatMul = MatMul(x, dense/kernel)`.
fn op_of(label: &str) -> Option<&str> {
    let (_, call) = label.split_once(" = ")?;
    let (op, _) = call.split_once('(')?;
    Some(op).filter(|op| !op.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_proto::tensorflow::{AllocatorMemoryUsed, DeviceStepStats, StepStats};

    fn node(name: &str, label: &str) -> NodeExecStats {
        NodeExecStats {
            node_name: name.into(),
            timeline_label: label.into(),
            op_start_rel_micros: 1,
            op_end_rel_micros: 4,
            memory: vec![AllocatorMemoryUsed { total_bytes: 8 }; 2],
            ..NodeExecStats::default()
        }
    }

    #[test]
    fn operations_are_known_by_their_labels() {
        let devices = ["/device:GPU:0", "/device:GPU:0/stream:1", "/device:GPU:0/stream:all"];
        let device = |name: &&str| DeviceStepStats {
            device: (*name).to_owned(),
            node_stats: vec![node("a/b", "a/b = MatMul(x, y)"), node("_SOURCE", "")],
        };
        let dev_stats = devices.iter().map(device).collect();
        let metadata = RunMetadata { step_stats: Some(StepStats { dev_stats }) };
        let runs = read(&metadata.encode_to_vec()).expect("valid");
        let seen: Vec<_> = runs.iter().map(|r| (r.op.as_str(), r.on_accelerator)).collect();
        let host = [("MatMul", false), ("_SOURCE", false)];
        let both = [host, [("MatMul", true), ("_SOURCE", true)]].concat();
        assert_eq!(seen, both);
        assert_eq!((runs[0].nanos, runs[0].bytes), (3000, 16));
    }

    #[test]
    fn what_is_no_profile_is_an_error() {
        assert!(read(b"\xff\xff\xff").is_err());
        assert!(read(b"").expect("an empty profile").is_empty());
        let error = read(&vec![0; MAX_PROFILE + 1]).expect_err("too large");
        assert_eq!(error.code(), Code::ResourceExhausted);
    }
}
