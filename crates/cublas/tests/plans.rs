//! Plans, on a stand-in for the library that computes from the descriptors in host memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use mica_cublas::{Addresses, Compute, CublasLt, Element, Error, Factor, Missing, Problem, Target};

fn built(folder: &Path, words: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_cublaslt.c");
    let library = folder.join("libcublasLt.so.13");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
        .arg(&library)
        .args(words)
        .arg(source)
        .args(["-lm", "-ldl"])
        .status()
        .unwrap();
    assert!(status.success());
    library
}

/// Small integers, which differ from place to place.
fn value(at: usize) -> f32 {
    (at * 7 % 11) as f32 - 5.0
}

fn problem(sizes: [u64; 3], by_columns: [bool; 2], stack: i32) -> Problem {
    let [m, n, k] = sizes;
    // One more than needed, so that a wrong distance shows.
    let distance = |by_columns, rows: u64, cols: u64| 1 + if by_columns { rows } else { cols };
    let factor = |by_columns, rows, cols| {
        let distance = distance(by_columns, rows, cols);
        let lines = if by_columns { cols } else { rows };
        let stack = (distance * lines + 3) as i64;
        Factor {
            by_columns,
            distance,
            stack,
        }
    };
    let target = Target {
        distance: n + 1,
        stack: ((n + 1) * m + 3) as i64,
    };
    Problem {
        sizes,
        stack,
        a: factor(by_columns[0], m, k),
        b: factor(by_columns[1], k, n),
        c: target,
        d: target,
        factors: Element::F32,
        result: Element::F32,
        compute: Compute::Full,
        bias: true,
        relu: true,
        alignments: [16; 4],
        workspace_bytes: 1 << 20,
    }
}

fn address(values: &[f32]) -> u64 {
    values.as_ptr() as u64
}

#[test]
fn products_in_every_order_with_bias_and_relu_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let library = CublasLt::open_file(&built(folder.path(), &[])).unwrap();
    assert_eq!(library.version(), 130_100);
    let [m, n, k, stack] = [3_usize, 5, 4, 2];
    for order in 0..4 {
        let by_columns = [order & 1 == 1, order & 2 == 2];
        let mut problem = problem([m as u64, n as u64, k as u64], by_columns, stack as i32);
        if order == 3 {
            problem.b.stack = 0;
        }
        let room = vec![0.0_f32; 200];
        let a: Vec<f32> = (0..200).map(value).collect();
        let b: Vec<f32> = (0..200).map(|at| value(at + 3)).collect();
        let c: Vec<f32> = (0..200).map(|at| value(at + 5)).collect();
        let bias: Vec<f32> = (0..n).map(|at| value(at + 8)).collect();
        let workspace = vec![0.0_f32; 4096];
        let plans = library.plans(&problem, 8).unwrap();
        // The third algorithm of the stand-in wants more workspace than it was offered.
        assert_eq!(plans.len(), 2, "{plans:?}");
        for plan in plans {
            let d = room.clone();
            let addresses = Addresses {
                a: address(&a),
                b: address(&b),
                c: address(&c),
                d: address(&d),
                bias: address(&bias),
                workspace: address(&workspace),
            };
            plan.queue(&addresses, 2.0, 3.0, 0).unwrap();
            let at = |f: &Factor, s: usize, i: usize, j: usize| {
                let (line, step) = if f.by_columns { (j, i) } else { (i, j) };
                s * f.stack as usize + line * f.distance as usize + step
            };
            for (s, i, j) in (0..stack * m * n).map(|x| (x / (m * n), x / n % m, x % n)) {
                let sum: f32 = (0..k)
                    .map(|p| a[at(&problem.a, s, i, p)] * b[at(&problem.b, s, p, j)])
                    .sum();
                let place = s * problem.d.stack as usize + i * problem.d.distance as usize + j;
                let want = (2.0 * sum + 3.0 * c[place] + bias[j]).max(0.0);
                assert_eq!(d[place], want, "order {order}, {s} {i} {j}");
            }
        }
    }
}

#[test]
fn integers_are_summed_as_integers() {
    let folder = tempfile::tempdir().unwrap();
    let library = CublasLt::open_file(&built(folder.path(), &[])).unwrap();
    let mut problem = problem([2, 2, 2], [false, true], 1);
    (problem.factors, problem.result) = (Element::I8, Element::I32);
    (problem.bias, problem.relu) = (false, false);
    let a: [i8; 6] = [1, 2, 0, -100, 100, 0];
    let b: [i8; 6] = [3, 4, 0, 100, -100, 0];
    let d = [0_i32; 6];
    let addresses = Addresses {
        a: a.as_ptr() as u64,
        b: b.as_ptr() as u64,
        c: d.as_ptr() as u64,
        d: d.as_ptr() as u64,
        bias: 0,
        workspace: 0,
    };
    let plans = library.plans(&problem, 1).unwrap();
    plans[0].queue(&addresses, 1.0, 0.0, 0).unwrap();
    assert_eq!(d, [11, -100, 0, 100, -20_000, 0]);
    // The stand-in, as the library, has no such product: that is no error.
    problem.b.by_columns = false;
    assert!(library.plans(&problem, 1).unwrap().is_empty());
    problem.sizes[0] = 0;
    problem.d.distance = 0;
    let refused = library.plans(&problem, 1).unwrap_err();
    assert!(refused.to_string().contains("invalid value"), "{refused}");
}

#[test]
fn what_cannot_be_used_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let old = built(folder.path(), &["-DFAKE_VERSION=110902"]);
    let missing = CublasLt::open_file(&old).unwrap_err();
    let Error::Missing(Missing::Version { version, .. }) = &missing else {
        panic!("{missing}");
    };
    assert_eq!(*version, 110_902);
    assert!(missing.to_string().contains("13 and 12"), "{missing}");
    let absent = CublasLt::open_file(&folder.path().join("none.so")).unwrap_err();
    assert!(absent.to_string().contains("none.so"), "{absent}");
}

#[test]
fn nothing_of_the_library_is_leaked() {
    let folder = tempfile::tempdir().unwrap();
    let file = built(folder.path(), &[]);
    let path = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
    let library = CublasLt::open_file(&file).unwrap();
    let plans = library
        .plans(&problem([3, 3, 3], [false; 2], 1), 2)
        .unwrap();
    // SAFETY: a library that is loaded already, by its path; the stand-in has the function with this type.
    let living = unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        let address = libc::dlsym(handle, c"fake_living".as_ptr());
        std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> i32>(address)
    };
    // A handle, an operation and four layouts.
    assert_eq!(living(), 6);
    drop(library);
    assert_eq!(living(), 6, "plans keep the library");
    drop(plans);
    assert_eq!(living(), 0);
}
