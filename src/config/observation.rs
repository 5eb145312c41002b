//! Settings of the logs and of traces, and OpenTelemetry's variables for the latter.
//!
//! OpenTelemetry's SDK reads further variables itself: the headers and the compression for the
//! collector (`OTEL_EXPORTER_OTLP_*`), the sizes of batches (`OTEL_BSP_*`), and what is said about
//! this process (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`).

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::check::Check;
use super::environment::Environment;
use super::groups::{LogFormat, ServerSettings, TraceProtocol};
use tensorserve_trace::{Rate, TraceSampler};

/// What is recorded of the server and of requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservationConfig {
    /// The level of the log, if a setting names it. The log starts before the settings are checked.
    pub log_level: Option<String>,
    /// The form of the log.
    pub log_format: LogFormat,
    /// The share of requests that get a line in the access log.
    pub access_log: Option<Rate>,
    /// Traces, if they are sent to a collector.
    pub traces: Option<TracesConfig>,
}

/// Which requests become part of a trace, and where their spans go.
#[derive(Clone, Debug, PartialEq)]
pub struct TracesConfig {
    /// Which requests.
    pub sampler: TraceSampler,
    /// The URL of the collector; `None` for that of OpenTelemetry's variables.
    pub endpoint: Option<String>,
    /// The collector is spoken to over gRPC, not over HTTP.
    pub over_grpc: bool,
    /// CA certificates to verify it against, PEM.
    pub ca: Option<PathBuf>,
    /// The spans that may wait for it.
    pub queue: Option<usize>,
    /// The time for an export.
    pub timeout: Option<Duration>,
}

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
const CERTIFICATES: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
const DISABLED: &str = "OTEL_SDK_DISABLED";
const TIMEOUTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
const QUEUE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";

/// The first of these variables that is set and not empty, with its name.
fn first<'e>(
    environment: &'e Environment,
    names: &[&'static str],
) -> Option<(&'static str, &'e str)> {
    let mut set = names.iter().filter_map(|name| Some((*name, environment.get(name)?)));
    set.find(|(_, value)| !value.is_empty())
}

impl Check {
    pub(super) fn observation(
        &mut self,
        server: &ServerSettings,
        environment: &Environment,
    ) -> ObservationConfig {
        let access_log = Rate::new(server.access_log());
        ObservationConfig {
            log_level: server.log_level.clone(),
            log_format: server.log_format(),
            access_log: access_log.filter(|share| *share != Rate::NONE),
            traces: self.traces(server, environment),
        }
    }

    fn traces(
        &mut self,
        server: &ServerSettings,
        environment: &Environment,
    ) -> Option<TracesConfig> {
        let is_disabled =
            environment.get(DISABLED).is_some_and(|on| on.eq_ignore_ascii_case("true"));
        let exporter = first(environment, &[EXPORTER]);
        let is_named = server.otlp_endpoint.is_some()
            || first(environment, &ENDPOINTS).is_some()
            || exporter.is_some_and(|(_, exporter)| exporter == "otlp");
        let over_grpc = self.over_grpc(server, environment);
        let sampler = self.sampler(server, environment);
        let endpoint = server.otlp_endpoint.clone();
        if is_disabled {
            return None;
        }
        match exporter {
            Some((_, "none")) if endpoint.is_none() => return None,
            Some((_, "otlp" | "none")) | None => {}
            Some((name, other)) => self.mistake(format!("{name}: {other:?} is not otlp or none")),
        }
        if !is_named {
            return None;
        }
        if !cfg!(feature = "traces") {
            self.mistake("this build of tensorserve cannot send traces (feature `traces`)");
        }
        Some(TracesConfig {
            sampler,
            endpoint,
            over_grpc,
            ca: first(environment, &CERTIFICATES).map(|(_, path)| PathBuf::from(path)),
            queue: self.positive(environment, &[QUEUE], "spans"),
            timeout: self
                .positive(environment, &TIMEOUTS, "milliseconds")
                .map(Duration::from_millis),
        })
    }

    /// The number of the first of these variables that is set.
    fn positive<N: FromStr + Default + PartialEq>(
        &mut self,
        environment: &Environment,
        names: &[&'static str],
        unit: &str,
    ) -> Option<N> {
        let (name, text) = first(environment, names)?;
        let number = text.parse().ok().filter(|number| *number != N::default());
        if number.is_none() {
            self.mistake(format!("{name}: {text:?} is not a positive number of {unit}"));
        }
        number
    }

    fn over_grpc(&mut self, server: &ServerSettings, environment: &Environment) -> bool {
        if server.otlp_protocol.is_some() {
            return server.otlp_protocol() == TraceProtocol::Grpc;
        }
        match first(environment, &PROTOCOLS) {
            None | Some((_, "http/protobuf")) => false,
            Some((_, "grpc")) => true,
            Some((name, other)) => {
                self.mistake(format!("{name}: {other:?} is not http/protobuf or grpc"));
                false
            }
        }
    }

    /// The sampler of `trace_sampling`, which follows the decision of callers, or else that of
    /// OpenTelemetry's variables.
    fn sampler(&mut self, server: &ServerSettings, environment: &Environment) -> TraceSampler {
        let all = TraceSampler { rate: Rate::ALL, parent_based: true };
        if let Some(share) = server.trace_sampling {
            let rate = Rate::new(share).unwrap_or(Rate::ALL);
            return TraceSampler { rate, ..all };
        }
        let Some((_, name)) = first(environment, &[SAMPLER]) else {
            return all;
        };
        let (parent_based, root) = match name.strip_prefix("parentbased_") {
            Some(root) => (true, root),
            None => (false, name),
        };
        let rate = match root {
            "always_on" => Rate::ALL,
            "always_off" => Rate::NONE,
            "traceidratio" => self.ratio(environment),
            _ => {
                let known =
                    "always_on, always_off or traceidratio, also with parentbased_ before it";
                self.mistake(format!("{SAMPLER}: {name:?} is not {known}"));
                Rate::ALL
            }
        };
        TraceSampler { rate, parent_based }
    }

    fn ratio(&mut self, environment: &Environment) -> Rate {
        let Some((name, text)) = first(environment, &[SAMPLER_ARGUMENT]) else {
            return Rate::ALL;
        };
        let rate = text.parse().ok().and_then(Rate::new);
        rate.unwrap_or_else(|| {
            self.mistake(format!("{name}: {text:?} is not a number from 0 to 1"));
            Rate::ALL
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Settings};

    fn read(
        pairs: &[(&str, &str)],
        change: impl Fn(&mut ServerSettings),
    ) -> (ObservationConfig, String) {
        let mut settings = Settings::default();
        change(&mut settings.server);
        let (config, mistakes) = Config::with_mistakes(settings, &Environment::of(pairs));
        let wrong = mistakes.result(()).err().map(|error| error.to_string());
        (config.observation, wrong.unwrap_or_default())
    }

    fn traces(pairs: &[(&str, &str)]) -> Option<TracesConfig> {
        let (config, wrong) = read(pairs, |_| ());
        assert_eq!(wrong, "");
        config.traces
    }

    const ON: (&str, &str) = (EXPORTER, "otlp");

    #[test]
    fn variables_turn_traces_on_and_off() {
        assert_eq!(traces(&[]), None);
        assert!(traces(&[ON]).is_some());
        assert!(traces(&[(ENDPOINTS[0], "http://c:4318/v1/traces")]).is_some());
        assert!(traces(&[(ENDPOINTS[1], "http://c:4318")]).is_some());
        assert_eq!(traces(&[(ENDPOINTS[1], "")]), None);
        assert_eq!(traces(&[(ENDPOINTS[1], "http://c:4318"), (EXPORTER, "none")]), None);
        assert_eq!(traces(&[ON, (DISABLED, "true")]), None);
        assert!(traces(&[ON, (DISABLED, "false")]).is_some());
    }

    #[test]
    fn protocols_and_samplers_are_read() {
        let of = |pairs: &[(&'static str, &'static str)]| traces(&[&[ON], pairs].concat()).unwrap();
        let timed = |name, value| of(&[(TIMEOUTS[1], "20000"), (name, value)]).timeout;
        assert_eq!(timed(QUEUE, "9"), Some(Duration::from_secs(20)));
        assert_eq!(timed(TIMEOUTS[0], "500"), Some(Duration::from_millis(500)));
        assert!(!of(&[]).over_grpc);
        assert!(of(&[(PROTOCOLS[1], "grpc")]).over_grpc);
        assert!(!of(&[(PROTOCOLS[1], "grpc"), (PROTOCOLS[0], "http/protobuf")]).over_grpc);
        let sampler = |name, argument| of(&[(SAMPLER, name), (SAMPLER_ARGUMENT, argument)]).sampler;
        let (all, tenth) = (Rate::ALL, Rate::new(0.1).unwrap());
        assert_eq!(of(&[]).sampler, TraceSampler { rate: all, parent_based: true });
        assert_eq!(
            sampler("always_off", ""),
            TraceSampler { rate: Rate::NONE, parent_based: false }
        );
        assert_eq!(
            sampler("traceidratio", "0.1"),
            TraceSampler { rate: tenth, parent_based: false }
        );
        let both = TraceSampler { rate: tenth, parent_based: true };
        assert_eq!(sampler("parentbased_traceidratio", "0.1"), both);
        let settings = |server: &mut ServerSettings| {
            server.otlp_endpoint = Some("http://c:4318".to_owned());
            server.trace_sampling = Some(0.1);
        };
        let (config, wrong) = read(&[(SAMPLER, "always_off")], settings);
        assert_eq!((config.traces.unwrap().sampler, wrong.as_str()), (both, ""));
    }

    #[test]
    fn mistakes_are_named() {
        for (pairs, part) in [
            (vec![(EXPORTER, "zipkin")], "OTEL_TRACES_EXPORTER: \"zipkin\" is not otlp"),
            (vec![ON, (PROTOCOLS[1], "http/json")], "OTEL_EXPORTER_OTLP_PROTOCOL: \"http/json\""),
            (vec![ON, (QUEUE, "0")], "OTEL_BSP_MAX_QUEUE_SIZE: \"0\" is not a positive number"),
            (vec![ON, (TIMEOUTS[1], "10s")], "OTEL_EXPORTER_OTLP_TIMEOUT: \"10s\""),
            (vec![ON, (SAMPLER, "often")], "OTEL_TRACES_SAMPLER: \"often\""),
            (
                vec![ON, (SAMPLER, "traceidratio"), (SAMPLER_ARGUMENT, "2")],
                "OTEL_TRACES_SAMPLER_ARG: \"2\"",
            ),
        ] {
            let (_, wrong) = read(&pairs, |_| ());
            assert!(wrong.contains(part), "{wrong}");
        }
        let wrong = |change: fn(&mut ServerSettings)| read(&[], change).1;
        assert!(wrong(|server| server.access_log = Some(1.5)).contains("access_log: 1.5 is not"));
        assert!(wrong(|server| server.trace_sampling = Some(-1.0)).contains("trace_sampling: -1"));
        assert!(
            wrong(|server| server.otlp_endpoint = Some("c:4318".to_owned())).contains("not a URL")
        );
        assert!(wrong(|server| server.otlp_protocol = Some("udp".to_owned())).contains("\"udp\""));
    }
}
