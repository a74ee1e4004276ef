//! A cap counts what a program makes its worker do besides running kernels, through a real daemon.

mod home;

use std::time::{Duration, Instant};

use home::Home;
use mica_limits::{Environment, open_session};
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;

/// Copies on the device for a while; answers how many copies there were.
fn copies(environment: &Environment, bytes: u64) -> u64 {
    let (_, socket) = open_session(environment).unwrap();
    let client = SessionClient::connect(socket, "copies").unwrap();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let alloc = || client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    let (src, dst) = (CopyPlace::Device(alloc()), CopyPlace::Device(alloc()));
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(2) {
        for _ in 0..8 {
            let area = CopyBox::linear(dst, src, bytes);
            client.post(&Copy { stream, area }, &[]).unwrap();
        }
        client.call(&StreamSynchronize { stream }).unwrap();
        count += 8;
    }
    count
}

/// A kernel that calls `printf` with 16,000 conversions.
fn printing() -> String {
    let format: Vec<String> = (b"%.0s".iter().cycle().take(64_000).chain(&[0]))
        .map(u8::to_string)
        .collect();
    format!(
        ".version 7.0\n.target sm_75\n.address_size 64\n\
         .extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n\
         .global .align 1 .b8 fmt[64001] = {{{}}};\n.global .align 8 .b8 args[128000];\n\
         .visible .entry print()\n{{\n.reg .b64 %a, %b; .reg .b32 %r;\n\
         mov.u64 %a, fmt; cvta.global.u64 %a, %a;\nmov.u64 %b, args; cvta.global.u64 %b, %b;\n\
         {{\n.param .b64 f; .param .b64 a; .param .b32 r;\n\
         st.param.b64 [f], %a; st.param.b64 [a], %b;\n\
         call.uni (r), vprintf, (f, a);\nld.param.b32 %r, [r];\n}}\nret;\n}}\n",
        format.join(",")
    )
}

/// Prints for a while; answers how many calls there were.
fn prints(environment: &Environment) -> u64 {
    let (_, socket) = open_session(environment).unwrap();
    let client = SessionClient::connect(socket, "prints").unwrap();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let module = client.module_load(context, printing().as_bytes(), false);
    let launch = Launch {
        stream,
        module: module.unwrap().module,
        kernel: 0,
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        cooperative: false,
    };
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(2) {
        client.launch(&launch, &[]).unwrap();
        client.call(&StreamSynchronize { stream }).unwrap();
        count += 1;
    }
    count
}

#[test]
fn a_cap_holds_copies_and_long_printfs() {
    let home = Home::new();
    let capped = home.create("capped", "--share 10% --cap");
    let free = home.create("free", "--share 50%");
    // Copies of some KiB take less of the device's time than the cap allows: a program cannot ask for more of them.
    is_capped("8 MiB copies", &capped, &free, |tenant| {
        copies(tenant, 8 << 20)
    });
    is_capped("printf", &capped, &free, prints);
}

/// Compares what a tenant with 10 % of the GPU's time does with what one without a cap does.
fn is_capped(
    what: &str,
    capped: &Environment,
    free: &Environment,
    done: impl Fn(&Environment) -> u64,
) {
    for _ in 0..3 {
        let (slow, fast) = (done(capped), done(free));
        println!("{what}: {slow} under a cap, {fast} without");
        // 10 % of the time, and what a busy machine adds.
        if (slow as f64) < 0.3 * fast as f64 {
            return;
        }
    }
    // Where other programs take the processors, the tenant without a cap gets no more than the cap either.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
    let cores = std::thread::available_parallelism().unwrap().get() as f64;
    assert!(load > 2.0 * cores, "{what} are not held to the cap");
    println!("{what}: skipped, the machine's load is {load}");
}
