//! Launches one by one: with attributes, cancelled by themselves, timed and profiled.

mod common;

use std::time::Duration;

use common::{PTX, embedded, on_both};
use mica::{Activity, Grid};

#[test]
fn one_launch_is_cancelled_and_the_others_are_not() {
    on_both(64 << 20, |vgpu| {
        let module = vgpu.load_ptx(PTX).unwrap();
        let (vadd, spin) = (
            module.kernel("vadd").unwrap(),
            module.kernel("spin").unwrap(),
        );
        let stream = vgpu.stream().unwrap();
        let x = vgpu.upload(&[1.0_f32; 64]).unwrap();
        let sum = vgpu.alloc::<f32>(64).unwrap();
        let grid = Grid::new(1, 64);
        stream
            .launch(&vadd, grid, (&x, &sum, &sum, 64_u32))
            .unwrap();
        let endless = stream
            .launch_cancellable(&spin, Grid::new(1, 1), ())
            .unwrap();
        let queued = stream
            .launch_cancellable(&spin, Grid::new(1, 1), ())
            .unwrap();
        stream
            .launch(&vadd, grid, (&x, &sum, &sum, 64_u32))
            .unwrap();
        assert_ne!(endless, queued);
        assert!(!stream.is_idle().unwrap());
        // The one that waits behind the first goes without ever having run.
        assert!(vgpu.cancel_launch(queued).unwrap());
        assert!(!stream.is_idle().unwrap());
        assert!(vgpu.cancel_launch(endless).unwrap());
        stream.synchronize().unwrap();
        assert_eq!(
            sum.to_vec().unwrap(),
            [2.0; 64],
            "work before and after was done"
        );
        assert!(!vgpu.cancel_launch(endless).unwrap(), "it has ended");
        // The stream of its own is used again, and the old number does not reach the new launch.
        let again = stream
            .launch_cancellable(&spin, Grid::new(1, 1), ())
            .unwrap();
        assert!(!vgpu.cancel_launch(queued).unwrap() && !vgpu.cancel_launch(endless).unwrap());
        assert!(vgpu.cancel_launch(again).unwrap());
        stream.synchronize().unwrap();
    });
}

#[test]
fn a_launch_that_ends_by_itself_needs_no_cancelling() {
    on_both(64 << 20, |vgpu| {
        let vadd = vgpu.load_ptx(PTX).unwrap().kernel("vadd").unwrap();
        let stream = vgpu.stream().unwrap();
        let x = vgpu.upload(&[1.0_f32; 64]).unwrap();
        let sum = vgpu.alloc::<f32>(64).unwrap();
        for _ in 0..20 {
            let launch = stream
                .launch_cancellable(&vadd, Grid::new(1, 64), (&x, &sum, &sum, 64_u32))
                .unwrap();
            stream.synchronize().unwrap();
            assert!(!vgpu.cancel_launch(launch).unwrap());
        }
        assert_eq!(sum.to_vec().unwrap(), [20.0; 64]);
        // Twenty launches one after the other take few streams.
        assert!(vgpu.statistics().unwrap().streams <= 4);
    });
}

#[test]
fn launches_take_attributes_and_clusters() {
    on_both(64 << 20, |vgpu| {
        let vadd = vgpu.load_ptx(PTX).unwrap().kernel("vadd").unwrap();
        let stream = vgpu.stream().unwrap();
        let x = vgpu.upload(&[1.0_f32; 64]).unwrap();
        let mut sum = vgpu.alloc::<f32>(64).unwrap();
        let grid = Grid::new(2, 32).priority(0).overlap();
        stream
            .launch(&vadd, grid, (&x, &x, &mut sum, 64_u32))
            .unwrap();
        let cooperative = Grid::new(2, 32).cooperative().priority(0);
        stream
            .launch(&vadd, cooperative, (&x, &sum, &sum, 64_u32))
            .unwrap();
        // Parts of a graph have them too.
        let graph = stream
            .capture(|| stream.launch(&vadd, cooperative, (&x, &sum, &sum, 64_u32)))
            .unwrap();
        graph.instantiate().unwrap().launch(&stream).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(sum.to_vec().unwrap(), [4.0; 64]);
        // Clusters must divide the grid.
        let mut twice = vgpu.alloc::<f32>(64).unwrap();
        let clusters = Grid::new(2, 32).cluster([2, 1, 1]);
        stream
            .launch(&vadd, clusters, (&x, &x, &mut twice, 64_u32))
            .unwrap();
        stream.synchronize().unwrap();
        assert_eq!(twice.to_vec().unwrap(), [2.0; 64]);
        let uneven = Grid::new(3, 32).cluster([2, 1, 1]);
        let refused = stream
            .launch(&vadd, uneven, (&x, &x, &mut twice, 64_u32))
            .and_then(|()| stream.synchronize())
            .unwrap_err();
        assert!(refused.code().is_some(), "{refused}");
    });
}

#[test]
fn work_is_timed_by_the_device() {
    on_both(64 << 20, |vgpu| {
        let stream = vgpu.stream().unwrap();
        let (from, mut to) = (
            vgpu.alloc::<u8>(8 << 20).unwrap(),
            vgpu.alloc::<u8>(8 << 20).unwrap(),
        );
        let (answer, time) = stream
            .timed(|| to.copy_from_buffer(&stream, &from).map(|()| 42))
            .unwrap();
        assert_eq!(answer, 42);
        assert!(
            time > Duration::ZERO && time < Duration::from_secs(60),
            "{time:?}"
        );
        assert!(stream.is_idle().unwrap());
    });
}

#[test]
fn a_profile_names_kernels_copies_and_fills() {
    on_both(64 << 20, |vgpu| {
        let module = vgpu.load_ptx(PTX).unwrap();
        let (vadd, work) = (
            module.kernel("vadd").unwrap(),
            module.kernel("work").unwrap(),
        );
        let stream = vgpu.stream().unwrap();
        let mut out = vgpu.alloc::<u32>(64).unwrap();
        let (sums, profile) = vgpu
            .profile(|| {
                let x = vgpu.upload(&[1.0_f32; 1000])?;
                let sum = vgpu.alloc::<f32>(1000)?;
                for _ in 0..3 {
                    let grid = Grid::covering(1000, 256);
                    stream.launch(&vadd, grid, (&x, &sum, &sum, 1000_u32))?;
                }
                stream.launch(&work, Grid::new(64, 32), (&mut out, 100_000_u32))?;
                stream.synchronize()?;
                sum.to_vec()
            })
            .unwrap();
        assert_eq!(sums, [3.0; 1000]);
        let calls = |activity, name: &str| {
            let lines = profile.lines.iter();
            let of = lines.filter(|line| line.activity == activity && line.name.contains(name));
            of.map(|line| line.calls).sum::<u64>()
        };
        assert_eq!(calls(Activity::Kernel, "vadd"), 3, "{profile}");
        assert_eq!(calls(Activity::Kernel, "work"), 1, "{profile}");
        assert!(calls(Activity::Copy, "") >= 1, "{profile}");
        assert!(calls(Activity::Fill, "") >= 1, "{profile}");
        assert!(
            profile.busy > Duration::ZERO && profile.busy <= profile.wall,
            "{profile}"
        );
        let first = &profile.lines[0];
        assert!(
            first.total >= first.longest && first.longest > Duration::ZERO,
            "{first:?}"
        );
        let text = profile.to_string();
        assert!(
            text.contains("kernel vadd") && text.contains("SHARE"),
            "{text}"
        );
        // The next one begins anew, and one in another is refused.
        let ((), empty) = vgpu.profile(|| Ok(())).unwrap();
        assert_eq!(empty.wall, Duration::ZERO, "{empty}");
        let twice = vgpu
            .profile(|| vgpu.profile(|| Ok(())))
            .unwrap_err()
            .to_string();
        assert!(twice.contains("already"), "{twice}");
        vgpu.profile(|| Ok(())).unwrap();
    });
}

#[test]
fn a_profile_that_fails_leaves_nothing_on() {
    let vgpu = embedded(64 << 20);
    let failed = vgpu.profile(|| vgpu.alloc::<u8>(1 << 30));
    assert!(failed.unwrap_err().is_out_of_memory());
    let ((), profile) = vgpu.profile(|| Ok(())).unwrap();
    assert_eq!(profile.lines, []);
}
