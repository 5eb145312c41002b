//! The input objects of a job, and what their names say about them.

use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::path::Path;

use super::arguments::Arguments;
use super::show::note;
use tensorserve_records::compression::Compression;
use tensorserve_records::manifest;
use tensorserve_store::objects::{
    ObjectInfo, Place, PlaceOptions, UnusableName, find, find_prefix,
};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_transform::images;
use tensorserve_transform::job::FrozenJob;
use tensorserve_transform::plan::{Plan, PlannedObject};
use tensorserve_transform::report::counted;
use tensorserve_transform::state::DIRECTORY;

/// The most bytes of a list of files.
const MAX_LIST: u64 = 1 << 30;

/// Changes, damages and failures that are named one by one.
pub(super) const MOST_NAMED: usize = 10;

/// The objects of a job, and the place that their keys are in.
pub(super) struct JobInputs {
    pub(super) place: Place,
    pub(super) objects: Vec<ObjectInfo>,
    /// Files whose names cannot be keys: they fail.
    pub(super) unusable: Vec<UnusableName>,
    /// What the user has written.
    pub(super) named: String,
}

impl JobInputs {
    /// Finds the objects that the options name. `is_prefix`: every key that begins with the location, as
    /// SageMaker's S3Prefix.
    ///
    /// # Errors
    /// If there are none, or they cannot be listed.
    pub(super) fn find(
        arguments: &Arguments,
        is_prefix: bool,
        options: &PlaceOptions,
    ) -> Result<Self> {
        if let Some(manifest) = &arguments.manifest {
            let (place, key) = Place::open_prefix(manifest, options)?;
            let text = place.get(&key, MAX_LIST)?;
            let text =
                text.ok_or_else(|| Error::not_found(format!("{manifest}: no such object")))?;
            let uris = manifest::parse(&text).map_err(|e| e.context(manifest))?;
            return JobInputs::listed(&uris, manifest, options);
        }
        if let Some(file) = &arguments.files_from {
            let uris = lines_of(file)?;
            return JobInputs::listed(&uris, &format!("the list {file}"), options);
        }
        match arguments.input.as_slice() {
            [] => Err(Error::invalid("no input: name it with --input, --files-from or --manifest")),
            [one] => {
                let found = if is_prefix { find_prefix(one, options) } else { find(one, options) }?;
                let (place, objects, unusable) = (found.place, found.objects, found.unusable);
                Ok(JobInputs { place, objects, unusable, named: one.clone() })
            }
            several => JobInputs::several(several, options),
        }
    }

    /// The inputs of a plan that another process has made, of which the first stands for all.
    ///
    /// # Errors
    /// If their place cannot be opened.
    pub(super) fn planned(job: &FrozenJob, plan: &Plan, options: &PlaceOptions) -> Result<Self> {
        let place = Place::open(&job.input_place, options)?;
        // One whose name says the type of the job, if one does: beside images there may be other files.
        let mut planned = plan.entries.iter().flat_map(|entry| &entry.objects);
        let first = planned.clone().next();
        let first = planned.find(|it| names_type(&it.key, &job.content_type)).or(first);
        let objects = first.map(|object| ObjectInfo {
            key: object.key.clone(),
            size: object.size,
            tag: object.tag.clone(),
        });
        let (objects, unusable) = (objects.into_iter().collect(), Vec::new());
        Ok(JobInputs { place, objects, unusable, named: job.input.clone() })
    }

    /// The objects of several locations, in one place.
    fn several(locations: &[String], options: &PlaceOptions) -> Result<Self> {
        let (mut uris, mut unusable) = (Vec::new(), Vec::new());
        for location in locations {
            let mut found = find(location, options)?;
            unusable.append(&mut found.unusable);
            let base = found.place.display();
            uris.extend(found.objects.iter().map(|object| format!("{base}/{}", object.key)));
        }
        let inputs = JobInputs::listed(&uris, &locations.join(", "), options)?;
        Ok(JobInputs { unusable, ..inputs })
    }

    /// The objects at `uris`. Their keys are relative to the directory that they have in common.
    fn listed(uris: &[String], named: &str, options: &PlaceOptions) -> Result<Self> {
        let base = common_directory(uris);
        let Some(base) = base else {
            return Err(Error::invalid(format!("{named}: no objects, or in different stores")));
        };
        let place = Place::open(if base.is_empty() { "." } else { base }, options)?;
        let mut objects = Vec::with_capacity(uris.len());
        for uri in uris {
            let key = uri.strip_prefix(base).unwrap_or(uri);
            let found = place.head(key)?;
            let missing = || Error::not_found(format!("{named}: {uri}: there is no such object"));
            objects.push(found.ok_or_else(missing)?);
        }
        // An object that is named twice has one output.
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        objects.dedup_by(|a, b| a.key == b.key);
        Ok(JobInputs { place, objects, unusable: Vec::new(), named: named.to_owned() })
    }

    /// Leaves out what the job itself has written or will write, and refuses an output in the input.
    /// `has_begun` says that the output has the state of a job.
    ///
    /// # Errors
    /// If the output is a directory below the input that has inputs.
    pub(super) fn without_outputs(
        &mut self,
        output: &Place,
        arguments: &Arguments,
        has_begun: bool,
    ) -> Result<()> {
        let suffix = arguments.output_suffix.as_str();
        let (input, target) = (absolute(&self.place), absolute(output));
        if let Some(below) = target.strip_prefix(&format!("{}/", input.trim_end_matches('/'))) {
            let inside = format!("{below}/");
            if has_begun {
                // They are outputs: there was nothing when it began.
                self.objects.retain(|object| !object.key.starts_with(&inside));
            }
            if self.objects.iter().any(|object| object.key.starts_with(&inside)) {
                return Err(Error::invalid(format!(
                    "--output {} is inside of --input {}, which has objects there: the outputs would \
                     become inputs of the next run. Use another directory",
                    output.display(),
                    self.named
                )));
            }
        }
        if input == target {
            if arguments.combine_outputs {
                return Err(Error::invalid(
                    "--output is the same place as --input: with --combine-outputs, name another one",
                ));
            }
            if suffix.is_empty() {
                return Err(Error::invalid(
                    "--output is the same place as --input: outputs need an --output-suffix",
                ));
            }
            self.objects.retain(|object| !object.key.ends_with(suffix));
        }
        // The states of jobs, also of others below the input.
        self.objects.retain(|object| {
            !object.key.starts_with(DIRECTORY) && !object.key.contains(&format!("/{DIRECTORY}"))
        });
        if self.objects.is_empty() {
            return Err(Error::not_found(format!("{}: there are no input objects", self.named)));
        }
        Ok(())
    }

    /// Checks that the objects of a plan are those that were planned, also where they are done.
    ///
    /// # Errors
    /// If some have changed or disappeared.
    pub(super) fn check_planned(&self, plan: &Plan) -> Result<()> {
        let now: BTreeMap<&str, &ObjectInfo> =
            self.objects.iter().map(|object| (object.key.as_str(), object)).collect();
        let mut changes = Vec::new();
        let mut known = HashSet::new();
        for PlannedObject { key, size, tag } in plan.entries.iter().flat_map(|entry| &entry.objects)
        {
            if !known.insert(key.as_str()) {
                continue;
            }
            match now.get(key.as_str()) {
                None => changes.push(format!("{key}: has disappeared")),
                Some(object) if object.size != *size => {
                    changes.push(format!("{key}: has changed: {} bytes, was {size}", object.size));
                }
                Some(object) if object.tag != *tag => changes.push(format!("{key}: has changed")),
                Some(_) => {}
            }
        }
        let added = now.keys().filter(|key| !known.contains(**key)).count();
        if added > 0 {
            let (are, they, them) =
                if added == 1 { ("is", "it is", "it") } else { ("are", "they are", "them") };
            note(&format!(
                "note: {} {are} new since the job began; {they} not part of it. Start a job for {them} with \
                 another --output, or run the whole job again with --overwrite",
                counted(added, "object")
            ));
        }
        if changes.is_empty() {
            return Ok(());
        }
        let (are, them) = if changes.len() == 1 {
            ("is not what it was", "it")
        } else {
            ("are not what they were", "them")
        };
        Err(Error::precondition(format!(
            "{} {are} when the job began:{}\nRestore {them}, or start again with --overwrite",
            counted(changes.len(), "input object"),
            named(&changes)
        )))
    }
}

/// A list for an error or a remark, which does not name all of many.
pub(super) fn named(all: &[String]) -> String {
    let shown = all.iter().take(MOST_NAMED);
    let mut text: String = shown.map(|line| format!("\n  {}", one_line(line))).collect();
    if let Some(more) = all.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
        text.push_str(&format!("\n  and {more} more"));
    }
    text
}

/// A text without line breaks and other control characters, which names of objects may have.
pub(super) fn one_line(text: &str) -> String {
    let escaped = |c: char| -> String {
        if c.is_control() { c.escape_default().collect() } else { c.into() }
    };
    text.chars().map(escaped).collect()
}

/// Where a place is, without links.
fn absolute(place: &Place) -> String {
    let shown = place.display();
    if !place.is_local() {
        return shown;
    }
    let path = Path::new(&shown);
    let real = path.canonicalize().or_else(|_| std::path::absolute(path));
    real.map_or(shown.clone(), |real| real.display().to_string())
}

/// The lines of a file, or of stdin.
fn lines_of(file: &str) -> Result<Vec<String>> {
    let failed = |e: std::io::Error| Error::invalid(format!("--files-from {file}: {e}"));
    let mut text = String::new();
    let read = match file {
        "-" => std::io::stdin().take(MAX_LIST).read_to_string(&mut text),
        _ => std::fs::File::open(file).and_then(|f| f.take(MAX_LIST).read_to_string(&mut text)),
    };
    read.map_err(failed)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.map(str::to_owned).collect())
}

/// The directory that all of these have in common, with its slash; `None` if there is none, which is so
/// for objects of different stores.
fn common_directory(uris: &[String]) -> Option<&str> {
    let (first, others) = uris.split_first()?;
    let mut end = first.rfind('/').map_or(0, |at| at + 1);
    for other in others {
        let same = first.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        let shared = first.as_bytes().get(..end.min(same)).unwrap_or_default();
        end = shared.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    }
    let base = first.get(..end)?;
    let has_scheme = uris.iter().any(|uri| uri.contains("://"));
    // At least the bucket.
    let is_whole = !has_scheme || base.splitn(4, '/').count() >= 4;
    is_whole.then_some(base)
}

/// What the name of an image says.
const IMAGES: (&str, &str) = ("application/x-image", "none");

/// What the name of an object says: its media type and how it is divided into records.
pub(super) fn types_of_name(key: &str) -> Option<(&'static str, &'static str)> {
    let (_, suffix) = Compression::uncompressed_name(key).rsplit_once('.')?;
    Some(match suffix.to_ascii_lowercase().as_str() {
        "csv" => ("text/csv", "line"),
        "jsonl" | "ndjson" | "jsonlines" => ("application/jsonlines", "jsonl"),
        "json" => ("application/json", "none"),
        "tfrecord" | "tfrecords" => ("application/x-tfrecord", "tfrecord"),
        "parquet" => ("application/jsonlines", "parquet"),
        "npy" => ("application/x-npy", "npy"),
        "rec" | "recordio" => ("application/x-image", "recordio"),
        _ => return images::is_named(key).then_some(IMAGES),
    })
}

/// Whether the name of an object says that it has this media type.
pub(super) fn names_type(key: &str, content_type: &str) -> bool {
    types_of_name(key).is_some_and(|(named, _)| named == content_type)
}

/// What the names of the objects say: their media type and how they are divided into records. Beside images there
/// may be other files, which are left out.
///
/// # Errors
/// If they say nothing, or different types.
pub(super) fn types_of_names(inputs: &JobInputs) -> Result<(&'static str, &'static str)> {
    let mut found: BTreeMap<(&str, &str), (u64, &str)> = BTreeMap::new();
    for object in &inputs.objects {
        if let Some(types) = types_of_name(&object.key) {
            found.entry(types).or_insert((0, &object.key)).0 += 1;
        }
    }
    if found.contains_key(&IMAGES) {
        return Ok(IMAGES);
    }
    let mut types = found.keys();
    match (types.next(), types.next()) {
        (Some(only), None) => Ok(*only),
        (None, _) => {
            let first = inputs.objects.first().map_or("", |object| object.key.as_str());
            Err(Error::invalid(format!(
                "the name of {first:?} does not say what it is: add --content-type, such as text/csv or \
                 application/x-image"
            )))
        }
        (Some(_), Some(_)) => {
            let of_type = |((content_type, _), (count, key)): (&(&str, &str), &(u64, &str))| {
                format!("{} of {content_type} ({key:?})", counted(*count, "object"))
            };
            let all: Vec<String> = found.iter().map(of_type).collect();
            Err(Error::invalid(format!(
                "{}: by their names there are {}: take those of one type with a pattern, such as --input \
                 'DIRECTORY/**/*.csv', or say with --content-type what all of them are",
                inputs.named,
                all.join(", ")
            )))
        }
    }
}

/// How objects of a media type are divided into records unless told otherwise.
pub(super) fn split_of_type(content_type: &str) -> &'static str {
    let name = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match name.as_str() {
        "text/csv" => "line",
        "application/jsonlines" | "application/jsons" | "application/x-ndjson" => "jsonl",
        "application/x-npy" => "npy",
        "application/x-tfrecord" => "tfrecord",
        "application/x-parquet" | "application/vnd.apache.parquet" => "parquet",
        _ => "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::environment::Environment;
    use crate::config::{Config, Settings};

    #[test]
    fn objects_have_a_directory_in_common() {
        let of = |uris: &[&str]| {
            let uris: Vec<String> = uris.iter().map(|uri| (*uri).to_owned()).collect();
            common_directory(&uris).map(str::to_owned)
        };
        assert_eq!(of(&["s3://b/in/a", "s3://b/in/b/c"]).as_deref(), Some("s3://b/in/"));
        assert_eq!(of(&["s3://b/in/a", "s3://b/index"]).as_deref(), Some("s3://b/"));
        assert_eq!(of(&["s3://b/a", "s3://c/a"]), None);
        assert_eq!(of(&["x", "y"]).as_deref(), Some(""));
        assert_eq!(of(&["/a/b", "/a/c"]).as_deref(), Some("/a/"));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn names_of_all_objects_say_their_type() {
        let types = |names: &[&str]| {
            let object =
                |name: &&str| ObjectInfo { key: (*name).to_owned(), size: 1, tag: String::new() };
            let config = Config::new(Settings::default(), &Environment::default());
            let places = PlaceOptions::new(config.expect("valid").stores);
            let place = Place::open(".", &places).expect("a place");
            let objects = names.iter().map(object).collect();
            let inputs = JobInputs { place, objects, unusable: Vec::new(), named: "in".to_owned() };
            types_of_names(&inputs).map(|types| types.0).map_err(|e| e.message().to_owned())
        };
        assert_eq!(types(&["expected.json", "a.png"]), Ok("application/x-image"));
        assert_eq!(types(&["_SUCCESS", "b.csv", "c.csv.gz"]), Ok("text/csv"));
        let error = types(&["a.csv", "b.json", "c.csv"]).expect_err("two types");
        let part = "1 object of application/json (\"b.json\"), 2 objects of text/csv (\"a.csv\")";
        assert!(error.contains(part), "{error}");
        assert!(types(&["README", "x"]).expect_err("none").contains("\"README\""));
    }

    #[test]
    fn names_say_what_objects_are() {
        assert_eq!(types_of_name("a/b.CSV.gz"), Some(("text/csv", "line")));
        assert_eq!(types_of_name("photo.jpeg"), Some(("application/x-image", "none")));
        assert_eq!(types_of_name("archive.gz"), None);
        assert_eq!(types_of_name("dir.csv/readme"), None);
    }
}
