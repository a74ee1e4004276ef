//! A daemon that has lost its memory.

use mica_control::client::ControlClient;

use crate::processes;
use crate::tenant::Tenant;
use crate::world::{Home, eventually, start_daemon};

#[test]
fn a_worker_that_no_daemon_knows_any_more_ends() {
    let home = Home::new();
    let mut daemon = start_daemon(&home);
    let client = ControlClient::new(home.path().join("run/control.sock"));
    let answers = || client.gpus().map(drop).map_err(|error| error.to_string());
    eventually("the daemon listens", answers);
    let mut tenant = Tenant::new(0);
    let create = ["create", &tenant.name, "-m", "64MiB"];
    assert!(home.command(&create).output().unwrap().status.success());
    tenant.start(&home);
    eventually("its first step", || match tenant.steps() {
        0 => Err(tenant.said()),
        _ => Ok(()),
    });
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    std::fs::remove_file(home.path().join("run/state/state.json")).unwrap();
    std::fs::remove_file(home.path().join("run/grants")).unwrap();
    let mut daemon = start_daemon(&home);
    eventually("the worker ends, and its program", || {
        let running = tenant.ended().is_none();
        let left = processes::of(home.path());
        let worker = left.iter().any(|process| process.word == "worker");
        match running || worker {
            true => Err(format!("{left:?}")),
            false => Ok(()),
        }
    });
    let said = tenant.bury();
    assert!(said.contains("failed with CUresult"), "{said}");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    home.wait_for_the_end();
}
