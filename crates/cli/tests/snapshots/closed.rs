//! A GPU that takes no new programs or that is lost, while a program on it waits for its snapshot.
//!
//! The daemon runs in the test, which tells it the faults of the GPUs. Workers and the program are processes as ever.

use std::sync::{Arc, Mutex};

use mica_control::Paths;
use mica_control::api::GpuKind;
use mica_daemon::devices::{DeviceFacts, DeviceFault, DeviceReading, Devices, ProcessReading};
use mica_daemon::{Options, Running};

use super::*;

/// Longer than a program that waits takes to ask again, several times over.
const ASKED_AGAIN: Duration = Duration::from_millis(500);

/// Two software GPUs whose faults the test makes.
#[derive(Clone, Default)]
struct Faulty {
    faults: Arc<Mutex<Vec<DeviceFault>>>,
    /// Why GPU 0 is lost.
    lost: Arc<Mutex<Option<String>>>,
}

impl Faulty {
    /// A fault after which GPU 0 takes no new programs.
    fn close(&self, world: &World) {
        let fallen = DeviceFault {
            index: 0,
            xid: 79,
            pid: None,
        };
        self.faults.lock().unwrap().push(fallen);
        world.until(|| world.state("train") == "degraded");
        let other = world.program_of("train", 1).wait().unwrap();
        assert!(!other.success(), "it takes no new programs");
    }

    fn set_lost(&self, world: &World, is_lost: bool) {
        *self.lost.lock().unwrap() = is_lost.then(|| "the test took it away".into());
        world.until(|| (world.state("train") == "lost") == is_lost);
    }
}

impl Devices for Faulty {
    fn list(&mut self) -> Vec<DeviceFacts> {
        let gpu = |number: u32| DeviceFacts {
            kind: GpuKind::Software,
            name: format!("software GPU {number}"),
            uuid: String::new(),
            software_number: number,
            memory_total_bytes: 256 << 20,
            driver: None,
        };
        vec![gpu(0), gpu(1)]
    }

    fn read(&mut self, _: usize) -> Option<DeviceReading> {
        Some(DeviceReading::default())
    }

    fn lost(&mut self, index: usize) -> Option<String> {
        self.lost.lock().unwrap().clone().filter(|_| index == 0)
    }

    fn faults(&mut self) -> Vec<DeviceFault> {
        std::mem::take(&mut self.faults.lock().unwrap())
    }

    fn processes(&mut self, _: usize) -> Vec<ProcessReading> {
        Vec::new()
    }
}

/// A daemon with these GPUs in a world, and a program that runs.
fn start(world: &World, gpus: &Faulty) -> (Running, Child) {
    let worker = env!("CARGO_BIN_EXE_mica");
    let config = format!(
        "[software_gpu]\noffer = \"never\"\n[daemon]\nworker_command = [{worker:?}, \"worker\"]\n"
    );
    let config_file = world.home.path().join("mica.toml");
    std::fs::write(&config_file, config).unwrap();
    let daemon = Running::start(Options {
        paths: Paths::under(world.home.path()),
        config_file: Some(config_file),
        on_demand: false,
        devices: Box::new(gpus.clone()),
    });
    let daemon = daemon.unwrap();
    world.mica("create train -m 64MiB --gpu 0 --swap");
    let program = world.program_of("train", ENDLESS);
    world.until_step(2);
    (daemon, program)
}

#[test]
fn a_program_moves_off_a_gpu_that_takes_no_new_programs() {
    let (world, gpus) = (World { home: Home::new() }, Faulty::default());
    let (_daemon, mut program) = start(&world, &gpus);
    gpus.close(&world);
    let step = world.step();
    let said = world.mica("migrate train --gpu 1");
    assert_eq!(said, "train is on GPU 1 now\n");
    world.goes_on_after(step, &mut program, 0);
    world.end_in_order(&mut program);
}

#[test]
fn a_program_waits_for_its_snapshot_though_its_gpu_is_closed_or_lost_meanwhile() {
    let (world, gpus) = (World { home: Home::new() }, Faulty::default());
    let (_daemon, mut program) = start(&world, &gpus);
    world.mica("snapshot train a.snap");
    gpus.set_lost(&world, true);
    std::thread::sleep(ASKED_AGAIN);
    assert!(world.is_running(&mut program), "its GPU was lost");
    gpus.set_lost(&world, false);
    gpus.close(&world);
    std::thread::sleep(ASKED_AGAIN);
    assert!(world.is_running(&mut program), "its GPU was closed");
    let step = world.step();
    world.mica("restore a.snap");
    world.goes_on_after(step, &mut program, 0);
    world.end_in_order(&mut program);
}
