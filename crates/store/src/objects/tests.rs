//! Places on this machine and in a store.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::server::{Fault, Server};
use super::*;

const MIB: usize = 1 << 20;

fn options() -> PlaceOptions {
    let config = crate::testing::config(Path::new("/nonexistent"), BTreeMap::new());
    PlaceOptions { stores: config, attempts: 2 }
}

fn folder() -> (tempfile::TempDir, Place) {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::open(folder.path().to_str().unwrap(), &options()).unwrap();
    (folder, place)
}

fn in_store(server: &Server) -> PlaceOptions {
    let mut options = options();
    options.stores.endpoint = Some(server.url.clone());
    options.stores.anonymous = true;
    options
}

fn store(location: &str) -> (Server, Place) {
    let server = Server::start();
    let place = Place::open(location, &in_store(&server)).unwrap();
    (server, place)
}

fn keys(objects: &[ObjectInfo]) -> Vec<&str> {
    objects.iter().map(|object| object.key.as_str()).collect()
}

fn content(place: &Place, key: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    place.read(key, None, None).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// Bytes of which no two parts are the same.
fn pattern(length: usize) -> Vec<u8> {
    (0..length.div_ceil(4)).flat_map(|word| (word as u32).to_le_bytes()).take(length).collect()
}

/// What holds for every place.
fn behaves_as_a_place(place: &Place) {
    assert_eq!(place.list("").unwrap(), []);
    assert_eq!(place.head("a/x").unwrap(), None);
    assert_eq!(place.get("a/x", 10).unwrap(), None);
    assert_eq!(place.read("a/x", None, None).err().unwrap().code(), Code::NotFound);
    place.delete("a/x").unwrap();

    let put = place.put("a/x", b"12345").unwrap();
    assert_eq!((put.key.as_str(), put.size), ("a/x", 5));
    assert_eq!(place.head("a/x").unwrap(), Some(put.clone()));
    assert_eq!(place.list("").unwrap(), vec![put.clone()]);
    assert_eq!(place.get("a/x", 5).unwrap().unwrap(), b"12345");
    assert_eq!(place.get("a/x", 4).unwrap_err().code(), Code::ResourceExhausted);

    let mut part = String::new();
    place.read("a/x", Some(1..3), Some(&put.tag)).unwrap().read_to_string(&mut part).unwrap();
    assert_eq!(part, "23");
    for range in [5..5, 0..0] {
        assert_eq!(place.read("a/x", Some(range), None).unwrap().read(&mut [0; 4]).unwrap(), 0);
    }
    for range in [0..6, 5..6, 7..9, 7..7] {
        let error = place.read("a/x", Some(range), None).err().unwrap();
        assert_eq!(error.code(), Code::OutOfRange, "{error}");
    }

    assert!(!place.put_new("a/x", b"other").unwrap());
    assert_eq!(content(place, "a/x"), b"12345");
    assert!(place.put_new("b/new", b"n").unwrap());
    assert!(!place.put_new("b/new", b"n").unwrap());

    let again = place.put("a/x", b"54321").unwrap();
    assert_ne!(again.tag, put.tag);
    let error = place.read("a/x", None, Some(&put.tag)).err().unwrap();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("a/x: it has changed since the plan was made"), "{error}");

    place.put("empty", b"").unwrap();
    assert_eq!(content(place, "empty"), b"");
    let joined = place.publish_parts("joined", &["a/x", "empty", "b/new"].map(str::to_owned));
    assert_eq!(joined.unwrap().size, 6);
    assert_eq!(content(place, "joined"), b"54321n");
    let missing = place.publish_parts("joined", &["a/x".to_owned(), "none".to_owned()]);
    assert_eq!(missing.unwrap_err().code(), Code::NotFound);
    assert_eq!(content(place, "joined"), b"54321n");

    let mut draft = place.draft().unwrap();
    draft.file().write_all(b"draft").unwrap();
    assert_eq!(keys(&place.list("").unwrap()), ["a/x", "b/new", "empty", "joined"]);
    let published = draft.publish("d/e/f").unwrap();
    assert_eq!(place.head("d/e/f").unwrap(), Some(published));
    assert_eq!(content(place, "d/e/f"), b"draft");
    drop(place.draft().unwrap());

    // As many as a file system is flushed for at once; one has a key that is none.
    let keys_of_all = ["m/1", "m/2", "../m", "m/n/3", "m/4", "m/5"];
    let drafts = keys_of_all.map(|key| {
        let mut draft = place.draft().unwrap();
        draft.file().write_all(key.as_bytes()).unwrap();
        (key.to_owned(), draft)
    });
    let published = place.publish_all(drafts.into());
    for (key, published) in keys_of_all.into_iter().zip(published) {
        match key {
            "../m" => assert_eq!(published.unwrap_err().code(), Code::InvalidArgument),
            _ => {
                assert_eq!(place.head(key).unwrap(), Some(published.unwrap()));
                assert_eq!(content(place, key), key.as_bytes());
                place.delete(key).unwrap();
            }
        }
    }
    assert!(place.publish_all(Vec::new()).is_empty());
    let doubled = place.map((0..100).collect(), |n: i32| n * 2);
    assert_eq!(doubled, (0..200).step_by(2).collect::<Vec<_>>());

    for prefix in ["d/e", "d/e/", "d/e/f", "d"] {
        assert_eq!(keys(&place.list(prefix).unwrap()), ["d/e/f"], "{prefix}");
    }
    assert_eq!(place.list("d/e/f/").unwrap(), []);
    place.delete("d/e/f").unwrap();
    assert_eq!(place.head("d/e/f").unwrap(), None);

    for key in ["", "/x", "../x", "a/../x", "a\0", "x/"] {
        assert_eq!(place.put(key, b"").unwrap_err().code(), Code::InvalidArgument, "{key:?}");
        assert!(place.put_new(key, b"").is_err() && place.head(key).is_err());
        assert!(place.read(key, None, None).is_err() && place.delete(key).is_err());
        assert!(place.publish_parts(key, &[]).is_err());
        assert!(place.publish_parts("y", &[key.to_owned()]).is_err());
        assert!(place.draft().unwrap().publish(key).is_err());
    }
    assert!(place.list("../").is_err());
}

#[test]
fn a_folder_is_a_place() {
    let (folder, place) = folder();
    assert!(place.is_local());
    behaves_as_a_place(&place);
    // Every draft is gone.
    assert_eq!(fs::read_dir(folder.path().join(DRAFTS)).unwrap().count(), 0);
}

#[test]
fn a_prefix_of_a_store_is_a_place() {
    let (server, place) = store("s3://b/some/where");
    assert!(!place.is_local());
    behaves_as_a_place(&place);
    assert_eq!(server.content("some/where/a/x").unwrap(), b"54321");
    behaves_as_a_place(&store("s3://b").1);
}

#[test]
fn a_folder_is_created_with_the_first_object() {
    let (folder, _) = folder();
    let deep = folder.path().join("x/y");
    let place = Place::open(&format!("file://{}", deep.display()), &options()).unwrap();
    assert_eq!(place.list("").unwrap(), []);
    assert_eq!(place.clean_drafts().unwrap(), 0);
    assert!(!deep.exists());
    place.put("z", b"1").unwrap();
    assert_eq!(fs::read(deep.join("z")).unwrap(), b"1");
    let file = deep.join("z");
    assert!(Place::open(file.to_str().unwrap(), &options()).is_err());
    for wrong in ["", "ftp://h/x", "https://h/x", "a\0b"] {
        assert!(Place::open(wrong, &options()).is_err(), "{wrong:?}");
    }
}

#[test]
fn listings_follow_links_to_files_only() {
    let (folder, place) = folder();
    let root = folder.path();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "s").unwrap();
    fs::create_dir_all(root.join("in/deep")).unwrap();
    fs::write(root.join("in/deep/f"), "1").unwrap();
    fs::write(root.join("target"), "22").unwrap();
    symlink(root.join("target"), root.join("in/link")).unwrap();
    symlink(outside.path(), root.join("in/folder")).unwrap();
    symlink(root.join("in"), root.join("in/deep/circle")).unwrap();
    symlink("nowhere", root.join("in/broken")).unwrap();
    symlink("loop", root.join("in/loop")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root.join("in/socket")).unwrap();
    let listed = place.list("").unwrap();
    assert_eq!(keys(&listed), ["in/deep/f", "in/link", "target"]);
    assert_eq!(listed[1].size, 2);
    assert_eq!(place.head("in/socket").unwrap(), None);
    assert_eq!(place.read("in/socket", None, None).err().unwrap().code(), Code::NotFound);
    assert_eq!(place.head("in/broken").unwrap(), None);
    assert_eq!(place.head("target/x").unwrap(), None);
}

#[test]
fn a_file_that_changes_while_it_is_read_is_noticed() {
    let (folder, place) = folder();
    let path = folder.path().join("f");
    let read_all = |change: &dyn Fn()| {
        fs::write(&path, pattern(100_000)).unwrap();
        let tag = place.head("f").unwrap().unwrap().tag;
        let mut reader = place.read("f", None, Some(&tag)).unwrap();
        reader.read_exact(&mut [0; 10]).unwrap();
        change();
        reader.read_to_end(&mut Vec::new()).map(drop).map_err(error_of)
    };
    read_all(&|| {}).unwrap();
    let append = || File::options().append(true).open(&path).unwrap().write_all(b"x").unwrap();
    let shorten = || File::options().write(true).open(&path).unwrap().set_len(50_000).unwrap();
    for change in [&append as &dyn Fn(), &shorten] {
        let error = read_all(change).unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    }
    // One that is replaced stays readable as it was.
    read_all(&|| drop(place.put("f", b"new").unwrap())).unwrap();
}

#[test]
fn an_object_in_a_folder_appears_as_a_whole() {
    let (folder, place) = folder();
    let path = folder.path().join("f");
    let sizes = [100_000, 200_000];
    place.put("f", &pattern(sizes[0])).unwrap();
    let writer = std::thread::spawn({
        let place = place.clone();
        move || (0..40).for_each(|i| drop(place.put("f", &pattern(sizes[i % 2])).unwrap()))
    });
    while !writer.is_finished() {
        assert!(sizes.contains(&fs::read(&path).unwrap().len()));
    }
    writer.join().unwrap();
    // What cannot be written leaves what was there, and no draft.
    fs::create_dir_all(folder.path().join("dir/x")).unwrap();
    assert!(place.put("dir", b"1").is_err());
    assert!(place.put("f/below", b"1").is_err());
    assert_eq!(fs::read_dir(folder.path().join(DRAFTS)).unwrap().count(), 0);
}

#[test]
fn one_of_many_creates_a_new_object() {
    let (_folder, local) = folder();
    let (_server, remote) = store("s3://b/x");
    for place in [local, remote] {
        let created = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (place, created) = (place.clone(), &created);
                scope.spawn(move || {
                    let bytes = format!("writer {number}").into_bytes();
                    if place.put_new("lease", &bytes).unwrap() {
                        created.fetch_add(1, Relaxed);
                        assert_eq!(content(&place, "lease"), bytes);
                    }
                });
            }
        });
        assert_eq!(created.into_inner(), 1);
    }
}

#[test]
fn locations_are_directories_files_and_patterns() {
    let (folder, place) = folder();
    for key in ["a.csv", "b.csv", "sub/c.csv", "sub/deep/d.csv", "sub/e.txt", ".hidden.csv", "[x]"]
    {
        place.put(key, b"1").unwrap();
    }
    let root = folder.path().to_str().unwrap();
    let found = |rest: &str| {
        let found = find(&format!("{root}/{rest}"), &options())?;
        Ok::<_, Error>((found.place.display(), keys(&found.objects).join(" ")))
    };
    let pair = |place: &str, keys: &str| (format!("{root}{place}"), keys.to_owned());
    assert_eq!(found("sub").unwrap(), pair("/sub", "c.csv deep/d.csv e.txt"));
    assert_eq!(found("a.csv").unwrap(), pair("", "a.csv"));
    assert_eq!(found("[x]").unwrap(), pair("", "[x]"));
    assert_eq!(found("*.csv").unwrap(), pair("", "a.csv b.csv"));
    assert_eq!(found("?.csv").unwrap(), pair("", "a.csv b.csv"));
    assert_eq!(found("**/*.csv").unwrap(), pair("", "a.csv b.csv sub/c.csv sub/deep/d.csv"));
    assert_eq!(found("sub/*.csv").unwrap(), pair("/sub", "c.csv"));
    assert_eq!(found("s*/*.[ct]*").unwrap(), pair("", "sub/c.csv sub/e.txt"));
    assert_eq!(found("sub/**/d.csv").unwrap(), pair("/sub", "deep/d.csv"));
    for nothing in ["none", "*.json", "none/*.csv"] {
        assert_eq!(found(nothing).unwrap_err().code(), Code::NotFound, "{nothing}");
    }
    assert_eq!(found("a**b").unwrap_err().code(), Code::InvalidArgument);
    let (place, prefix) = Place::open_prefix(&format!("{root}/sub/c"), &options()).unwrap();
    assert_eq!((place.display(), prefix.as_str()), (format!("{root}/sub"), "c"));
    let found = find_prefix(&format!("{root}/sub/"), &options()).unwrap();
    assert_eq!(keys(&found.objects), ["c.csv", "deep/d.csv", "e.txt"]);
}

#[test]
fn a_prefix_means_all_keys_that_begin_with_it() {
    let server = Server::start();
    for key in ["in/data", "in/data.csv", "in/data/1", "in/data/2/3", "in/dat", "in/x", "inn"] {
        server.put(key, "1");
    }
    // Marks of directories.
    for key in ["in/", "in/data/", "in/data/none/"] {
        server.put(key, "");
    }
    server.put("in/data/0", "");
    let found = |location: &str| {
        let found = find(location, &in_store(&server)).unwrap();
        (found.place.display(), keys(&found.objects).join(" "))
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let all = "data data.csv data/0 data/1 data/2/3";
    assert_eq!(found("s3://b/in/data"), pair("s3://b/in", all));
    assert_eq!(found("s3://b/in/data/"), pair("s3://b/in/data", "0 1 2/3"));
    assert_eq!(found("s3://b/inn"), pair("s3://b", "inn"));
    assert_eq!(found("s3://b").1.split(' ').count(), 8);
    let none = find("s3://b/nothing", &in_store(&server)).err().unwrap();
    assert_eq!(none.code(), Code::NotFound);
    server.put("in/data/a//b", "1");
    let error = find("s3://b/in/", &in_store(&server)).err().unwrap();
    assert!(error.message().contains("a name that cannot be a path"), "{error}");
}

#[test]
fn a_large_object_is_read_in_parts_and_resumed() {
    let (server, place) = store("s3://b/in");
    let bytes = pattern(35 * MIB + 5);
    server.put("in/large", bytes.clone());
    assert!(content(&place, "large") == bytes);
    assert_eq!(server.requests().len(), 5);
    // Each part breaks off twice.
    let seen = AtomicUsize::new(0);
    server.fault(move |_, _| match seen.fetch_add(1, Relaxed) % 3 {
        2 => Fault::None,
        _ => Fault::Truncate(3 * MIB),
    });
    assert!(content(&place, "large") == bytes);
    server.fault(|_, _| Fault::None);
    let mut middle = Vec::new();
    let range = 9_000_000..30_000_001;
    place.read("large", Some(range), None).unwrap().read_to_end(&mut middle).unwrap();
    assert!(middle == bytes[9_000_000..30_000_001]);
    // What is not read is not fetched: one part here, and two ahead.
    server.requests();
    let mut reader = place.read("large", None, None).unwrap();
    reader.read_exact(&mut vec![0; MIB]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(server.requests().len(), 3);
    // It changes on the way.
    server.put("in/large", bytes.clone());
    let error = error_of(reader.read_to_end(&mut Vec::new()).unwrap_err());
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert!(reader.read(&mut [0; 1]).is_err());
}

#[test]
fn a_store_that_stays_down_is_given_up() {
    let (server, place) = store("s3://b/in");
    server.put("in/x", "123456");
    server.fault(|_, _| Fault::Truncate(0));
    assert_eq!(place.read("x", None, None).err().unwrap().code(), Code::Unavailable);
    server.fault(|_, _| Fault::Status(403, "AccessDenied"));
    let error = place.put("y", b"1").unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
    assert!(error.message().contains("may write, and delete"), "{error}");
    let error = place.read("x", None, None).err().unwrap();
    assert!(error.message().starts_with("s3://b/in/x: the store refuses access"), "{error}");
    assert!(error.message().contains("may list and read"), "{error}");
}

#[test]
fn a_large_object_is_uploaded_in_parts() {
    let (server, place) = store("s3://b/out");
    let bytes = pattern(25 * MIB + 3);
    let draft = || {
        let mut draft = place.draft().unwrap();
        draft.file().write_all(&bytes).unwrap();
        draft
    };
    // A part is lost once, and so is the response to the last request.
    let lost = Arc::new(AtomicUsize::new(0));
    server.fault({
        let lost = Arc::clone(&lost);
        move |method, target| match method {
            "PUT" if target.contains("partNumber=2") && lost.fetch_or(1, Relaxed) & 1 == 0 => {
                Fault::Lost
            }
            "POST" if target.contains("uploadId") && lost.fetch_or(2, Relaxed) & 2 == 0 => {
                Fault::Unanswered
            }
            _ => Fault::None,
        }
    });
    let published = draft().publish("large").unwrap();
    assert_eq!(lost.load(Relaxed), 3);
    assert_eq!(place.head("large").unwrap(), Some(published));
    assert!(server.content("out/large").unwrap() == bytes);
    assert_eq!(server.open_uploads(), 0);

    server.fault(|_, _| Fault::None);
    let parts = ["large", "large"].map(str::to_owned);
    assert_eq!(place.publish_parts("twice", &parts).unwrap().size, 2 * bytes.len() as u64);
    assert!(server.content("out/twice").unwrap() == [bytes.clone(), bytes.clone()].concat());

    // A failure leaves nothing.
    server.fault(|method, target| match (method, target.contains("partNumber=3")) {
        ("PUT", true) => Fault::Status(403, "AccessDenied"),
        _ => Fault::None,
    });
    assert_eq!(draft().publish("failed").unwrap_err().code(), Code::PermissionDenied);
    assert_eq!((server.content("out/failed"), server.open_uploads()), (None, 0));
}

#[test]
fn a_lost_response_does_not_hide_who_created_an_object() {
    let (server, place) = store("s3://b/x");
    let mut requests = 0;
    server.fault(move |method, _| {
        requests += usize::from(method == "PUT");
        if method == "PUT" && requests == 1 { Fault::Unanswered } else { Fault::None }
    });
    assert!(place.put_new("lease", b"mine").unwrap());
    assert!(!place.put_new("lease", b"mine too").unwrap());
}

#[test]
fn a_bucket_is_found_in_its_region() {
    let (server, place) = store("s3://b/x");
    server.put("x/1", "1");
    let mut requests = 0;
    server.fault(move |_, _| {
        requests += 1;
        if requests == 1 { Fault::Region("eu-north-1") } else { Fault::None }
    });
    assert_eq!(keys(&place.list("").unwrap()), ["1"]);
    server.fault(|_, _| Fault::Region("eu-north-1"));
    let error = place.list("").unwrap_err();
    assert!(error.message().contains("another region"), "{error}");
}

#[test]
fn asynchronous_code_is_refused() {
    let (_server, place) = store("s3://b/x");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let error = runtime.block_on(async { place.list("") }).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
}
