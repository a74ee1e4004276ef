//! The Rust API's view of a daemon: virtual GPUs made, joined, changed and removed by a program.

mod home;

use home::Home;
use mica::control::{GpuKind, Mode, Resize, VgpuSpec, VgpuState};
use mica::{Daemon, Error, Grid};

const MIB: u64 = 1 << 20;

const TWICE: &str = ".version 7.0 .target sm_75 .address_size 64
.visible .entry twice(.param .u64 data)
{
    .reg .b32 %r<3>; .reg .b64 %d<3>;
    ld.param.u64 %d1, [data];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d1, %d1, %d2;
    ld.global.u32 %r2, [%d1];
    shl.b32 %r2, %r2, 1;
    st.global.u32 [%d1], %r2;
    ret;
}";

fn control_socket(home: &Home) -> std::path::PathBuf {
    home.path().join("run").join("control.sock")
}

#[test]
fn a_program_makes_joins_changes_and_removes_virtual_gpus() {
    let home = Home::new();
    let nobody = Daemon::at(control_socket(&home)).unwrap_err();
    assert!(matches!(nobody, Error::Control(_)), "{nobody}");
    home.mica("create other -m 1MiB --mode isolated --gpu software");

    let daemon = Daemon::at(control_socket(&home)).unwrap();
    let gpus = daemon.gpus().unwrap();
    let software = gpus
        .iter()
        .find(|gpu| gpu.kind == GpuKind::Software)
        .unwrap();
    let spec = VgpuSpec {
        name: Some("trial".into()),
        memory_limit_bytes: Some(64 * MIB),
        mode: Some(Mode::Isolated),
        gpu: Some(software.index),
        ..VgpuSpec::default()
    };
    assert_eq!(daemon.create(&spec).unwrap().memory_limit_bytes, 64 * MIB);
    let taken = daemon.create(&spec).unwrap_err().to_string();
    assert!(taken.contains("trial"), "{taken}");
    let mut names: Vec<_> = (daemon.list().unwrap().into_iter())
        .map(|vgpu| vgpu.name)
        .collect();
    names.sort();
    assert_eq!(names, ["other", "trial"]);

    let vgpu = daemon.join("trial").unwrap();
    let twice = vgpu.load_ptx(TWICE).unwrap().kernel("twice").unwrap();
    let mut data = vgpu.upload(&[1_u32, 2, 3]).unwrap();
    let stream = vgpu.stream().unwrap();
    stream
        .launch(&twice, Grid::new(1, 3), (&mut data,))
        .unwrap();
    stream.synchronize().unwrap();
    assert_eq!(data.to_vec().unwrap(), [2, 4, 6]);
    assert!(vgpu.alloc::<u8>(48 << 20).is_ok());
    let smaller = Resize {
        memory_limit_bytes: Some(32 * MIB),
        ..Resize::default()
    };
    let resized = daemon.resize("trial", &smaller).unwrap();
    assert_eq!(resized.memory_limit_bytes, 32 * MIB);
    assert!(vgpu.alloc::<u8>(48 << 20).unwrap_err().is_out_of_memory());

    assert_eq!(daemon.suspend("trial").unwrap().state, VgpuState::Suspended);
    let resumed = daemon.resume("trial").unwrap();
    assert_ne!(resumed.state, VgpuState::Suspended);
    stream
        .launch(&twice, Grid::new(1, 3), (&mut data,))
        .unwrap();
    assert_eq!(data.to_vec().unwrap(), [4, 8, 12]);
    assert_eq!(daemon.cancel("trial").unwrap(), 0);

    // A program that has joined counts until it ends, so only others can be removed.
    drop((data, stream, twice, vgpu));
    let busy = daemon.remove("trial", false).unwrap_err().to_string();
    assert!(busy.contains("a process runs in trial"), "{busy}");
    daemon.remove("other", false).unwrap();
    let gone = daemon.join("other").unwrap_err();
    assert!(matches!(gone, Error::Control(_)), "{gone}");
}
