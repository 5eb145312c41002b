//! Batching parameters change while the model serves, without a load or a failed request.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use tensorserve::config::{ModelSettings, SourceConfig};

use crate::support::fake::{Fake, Model};
use crate::support::place::Place;
use crate::support::server::{TestServer, config, settings};
use crate::support::wait;

/// The model `m` with a maximum batch size of `rows`.
fn sources(place: &Place, rows: usize) -> Vec<SourceConfig> {
    let mut settings = settings();
    settings.batching.batching = Some("on".into());
    settings.batching.max_batch_size = Some(rows);
    let (name, path) = (Some("m".to_owned()), Some(place.path("models/m")));
    settings.models.push(ModelSettings { name, path, ..ModelSettings::default() });
    config(settings).repository.sources
}

fn reload(place: &Place, rows: usize) {
    wait(place.server.engine.reload(sources(place, rows))).expect("reload succeeds");
}

#[test]
fn parameters_change_under_load_without_a_load_or_a_failed_request() {
    let model = Model { run_millis: 1, ..Model::default() };
    let place = Place::with(&[("models/m/1", model)], |settings, root| {
        let (name, path) = (Some("m".to_owned()), Some(root.join("models/m")));
        settings.models.push(ModelSettings { name, path, ..ModelSettings::default() });
        settings.server.inline_budget_micros = Some(0);
    });
    place.server.wait_until_started();
    let loads = place.fake.loads(&place.path("models/m/1"));
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for client in 0..4 {
            let (place, stop, sent) = (&place, &stop, &sent);
            scope.spawn(move || {
                while !stop.load(SeqCst) {
                    let number = sent.fetch_add(1, SeqCst) * 4 + client;
                    let answer = place.predict("m", &format!("[[{number}], [1]]"));
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    #[allow(clippy::cast_precision_loss)]
                    let want = number as f64;
                    assert_eq!(answer.json()["predictions"][0][0], want);
                }
            });
        }
        let try_limit = |rows: usize| {
            let request = |rows: usize| place.predict("m", &format!("{:?}", vec![[0]; rows]));
            let refused = request(rows + 1);
            let part = format!("larger than maximum input batch size {rows}");
            (request(rows).status, refused.status, refused.text().contains(&part))
        };
        for round in 0..20 {
            let before = sent.load(SeqCst);
            let rows = 2 + 3 * (round % 2);
            reload(&place, rows);
            // Requests after the change see it at once.
            assert_eq!(try_limit(rows), (200, 400, true), "{rows} rows");
            place.server.wait_until("8 more requests", |_| sent.load(SeqCst) > before + 8);
        }
        stop.store(true, SeqCst);
    });
    assert_eq!(place.fake.loads(&place.path("models/m/1")), loads);
    assert_eq!(place.fake.alive(), 1);
    // The next version still replaces the changed one.
    place.write("models/m/2", &Model::constant(2.0));
    place.server.wait_until("version 2 serves", |_| {
        place.fake.alive() == 1 && place.state("m", 2).is_some_and(|(s, _)| s == "AVAILABLE")
    });
}

#[test]
fn a_versions_own_file_of_parameters_is_read_again() {
    let root = tempfile::tempdir().expect("temporary directory");
    let folder = root.path().join("m/1");
    fs::create_dir(root.path().join("m")).expect("directory");
    Model::default().write(&folder);
    let mut settings = settings();
    settings.paths.push(root.path().to_owned());
    let mut config = config(settings);
    config.repository.sources[0].model.batching_file = true;
    let fake = Fake::default();
    let server = TestServer::start_with(&config, vec![fake.platform()]);
    server.wait_until_started();
    let refuses = |rows: usize| {
        let body = format!("{{\"instances\": {:?}}}", vec![[0]; rows]);
        server.post("/v1/models/m:predict", body).status == 400
    };
    assert!(!refuses(3));
    let loads = fake.loads(&folder);
    fs::write(folder.join("batching_params.pbtxt"), "max_batch_size { value: 2 }")
        .expect("written");
    server.wait_until("the limit is 2", |_| refuses(3));
    // A malformed file changes nothing.
    fs::write(folder.join("batching_params.pbtxt"), "max_batch_size {").expect("written");
    thread::sleep(std::time::Duration::from_millis(300));
    assert!(refuses(3) && !refuses(2));
    fs::write(folder.join("batching_params.pbtxt"), "max_batch_size { value: 4 }")
        .expect("written");
    server.wait_until("the limit is 4", |_| !refuses(3) && refuses(5));
    assert_eq!(fake.loads(&folder), loads);
}
