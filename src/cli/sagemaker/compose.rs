//! Reads what SageMaker's SDK writes into a `docker-compose.yaml`.

use yaml_rust2::{Yaml, YamlLoader};

use tensorserve_tensor::error::{Error, Result};

/// The service of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) command: Vec<String>,
    /// Names and values.
    pub(super) environment: Vec<(String, String)>,
    /// In the short form.
    pub(super) volumes: Vec<String>,
    /// In the short form.
    pub(super) ports: Vec<String>,
}

/// The maximum size of a file; the SDK writes a few kilobytes.
const MAX_BYTES: usize = 1 << 20;

/// The one service of a compose file.
///
/// # Errors
/// If the file is not YAML, does not have exactly one service, or has a part in an unknown form.
pub(super) fn service(text: &str) -> Result<Service> {
    if text.len() > MAX_BYTES {
        return Err(Error::invalid("the compose file is larger than 1 MiB"));
    }
    let documents = YamlLoader::load_from_str(text)
        .map_err(|e| Error::invalid(format!("not YAML: {e}")).with_source(e))?;
    let services = documents.first().and_then(|document| document["services"].as_hash());
    let services: Vec<&Yaml> =
        services.into_iter().flat_map(|services| services.values()).collect();
    let [service] = services.as_slice() else {
        let count = services.len();
        return Err(Error::invalid(format!(
            "the file has {count} services; exactly one is expected"
        )));
    };
    let command = &service["command"];
    let command = match command.as_str() {
        Some(line) => line.split_whitespace().map(str::to_owned).collect(),
        None => texts(command, "command")?,
    };
    Ok(Service {
        command,
        environment: environment(&service["environment"])?,
        volumes: texts(&service["volumes"], "volumes")?,
        ports: texts(&service["ports"], "ports")?,
    })
}

/// A list of `NAME=value`, or a mapping.
fn environment(yaml: &Yaml) -> Result<Vec<(String, String)>> {
    let Some(table) = yaml.as_hash() else {
        let list = texts(yaml, "environment")?.into_iter();
        let pairs = list.filter_map(|text| {
            let (name, value) = text.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        return Ok(pairs.collect());
    };
    let pair = |(name, value): (&Yaml, &Yaml)| {
        Ok((scalar(name, "environment")?, scalar(value, "environment")?))
    };
    table.iter().map(pair).collect()
}

fn texts(yaml: &Yaml, what: &str) -> Result<Vec<String>> {
    match yaml {
        Yaml::BadValue | Yaml::Null => Ok(Vec::new()),
        Yaml::Array(items) => items.iter().map(|item| scalar(item, what)).collect(),
        Yaml::Real(_)
        | Yaml::Integer(_)
        | Yaml::String(_)
        | Yaml::Boolean(_)
        | Yaml::Hash(_)
        | Yaml::Alias(_) => Err(Error::invalid(format!("{what} must be a list"))),
    }
}

fn scalar(yaml: &Yaml, what: &str) -> Result<String> {
    match yaml {
        Yaml::String(text) | Yaml::Real(text) => Ok(text.clone()),
        Yaml::Integer(number) => Ok(number.to_string()),
        Yaml::Boolean(value) => Ok(value.to_string()),
        Yaml::Null => Ok(String::new()),
        Yaml::BadValue | Yaml::Array(_) | Yaml::Hash(_) | Yaml::Alias(_) => {
            Err(Error::invalid(format!("an item of {what} must be text or a number")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As version 2.257.7 of the SDK writes it.
    const WRITTEN: &str = "\
networks:
  sagemaker-local:
    name: sagemaker-local
services:
  algo-1-abcde:
    command: serve
    container_name: x1y2z3-algo-1-abcde
    environment:
    - AWS_ACCESS_KEY_ID=AKIDEXAMPLE
    - SAGEMAKER_TFS_DEFAULT_MODEL_NAME=m
    - 'QUOTED=it''s: #1'
    image: 763104351884.dkr.ecr.us-west-2.amazonaws.com/tensorflow-inference:2.18.0-cpu
    networks:
      sagemaker-local:
        aliases:
        - algo-1-abcde
    ports:
    - 8080:8080
    stdin_open: true
    tty: true
    volumes:
    - /tmp/tmpab12/model:/opt/ml/model
version: '2.3'
";

    #[test]
    fn what_the_sdk_writes() {
        let service = service(WRITTEN).expect("valid");
        assert_eq!(service.command, ["serve"]);
        assert_eq!(service.volumes, ["/tmp/tmpab12/model:/opt/ml/model"]);
        assert_eq!(service.ports, ["8080:8080"]);
        let quoted = ("QUOTED".to_owned(), "it's: #1".to_owned());
        assert!(service.environment.contains(&quoted), "{:?}", service.environment);
        assert_eq!(service.environment.len(), 3);
    }

    #[test]
    fn an_environment_may_be_a_table() {
        let text = "services: {a: {command: [serve], environment: {A: 1, B: null, C: true}}}";
        let environment = service(text).expect("valid").environment;
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(environment, [pair("A", "1"), pair("B", ""), pair("C", "true")]);
    }

    #[test]
    fn other_files_are_refused() {
        for (text, part) in [
            ("services: {a: {}, b: {}}", "2 services"),
            ("", "0 services"),
            ("services: [", "not YAML"),
            ("services: {a: {ports: 8080}}", "ports must be a list"),
            ("services: {a: {volumes: [{source: /m}]}}", "an item of volumes"),
        ] {
            let error = service(text).expect_err(part);
            assert!(error.message().contains(part), "{error}");
        }
    }
}
