//! Amazon's configuration files: `~/.aws/credentials` and `~/.aws/config`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::config::StoreConfig;

/// The settings of the profile that `AWS_PROFILE` names; those of `credentials` count first. Empty if
/// there is no such file or profile.
pub(crate) fn read(config: &StoreConfig) -> BTreeMap<String, String> {
    let home = config.variable("HOME").map(|home| PathBuf::from(home).join(".aws"));
    let file = |variable: &str, name: &str| {
        let named = config.variable(variable).map(PathBuf::from);
        let path = named.or_else(|| home.as_ref().map(|home| home.join(name)))?;
        fs::read_to_string(path).ok()
    };
    let profile = config.variable("AWS_PROFILE").unwrap_or("default");
    let shared = file("AWS_SHARED_CREDENTIALS_FILE", "credentials").unwrap_or_default();
    let general = file("AWS_CONFIG_FILE", "config").unwrap_or_default();
    let mut settings = section(&general, &[profile, &format!("profile {profile}")]);
    settings.extend(section(&shared, &[profile]));
    settings
}

/// The settings of a section with one of these names. Indented lines belong to a nested setting and
/// are skipped.
fn section(text: &str, names: &[&str]) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    let mut is_inside = false;
    for line in text.lines() {
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.starts_with(['#', ';']) || is_nested {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            is_inside = names.contains(&name.trim());
            continue;
        }
        if let (true, Some((key, value))) = (is_inside, line.split_once('=')) {
            settings.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_has_settings_in_two_files() {
        let folder = tempfile::tempdir().expect("a directory");
        let aws = folder.path().join(".aws");
        fs::create_dir(&aws).expect("a directory");
        let keys = "# keys\n[default]\naws_access_key_id = A\n\n[work]\naws_access_key_id=B\naws_secret_access_key = s=1\n";
        fs::write(aws.join("credentials"), keys).expect("written");
        let general = "[default]\nregion = eu-west-1\n[profile work]\nregion = us-east-2\ns3 =\n  region = nested\nendpoint_url = http://x\n";
        fs::write(aws.join("config"), general).expect("written");
        let read = |profile: &str| {
            let home = folder.path().to_string_lossy().into_owned();
            let mut environment = BTreeMap::from([("HOME".to_owned(), home)]);
            environment.insert("AWS_PROFILE".to_owned(), profile.to_owned());
            read(&crate::testing::config(folder.path(), environment))
        };
        let work = read("work");
        assert_eq!(work["aws_access_key_id"], "B");
        assert_eq!(work["aws_secret_access_key"], "s=1");
        assert_eq!(
            (work["region"].as_str(), work["endpoint_url"].as_str()),
            ("us-east-2", "http://x")
        );
        assert_eq!(read("")["region"], "eu-west-1");
        assert!(read("other").is_empty());
    }
}
