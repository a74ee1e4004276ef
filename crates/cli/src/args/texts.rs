//! What stands below the options in the help of a command. Lines are as long as their sentence: they are wrapped when shown.

/// What `mica` alone prints: no more than fits a small terminal.
pub(crate) const WELCOME: &str = "\
Mica splits a GPU into virtual GPUs with a memory limit and a compute share
that hold. Without a GPU, programs run on Mica's software GPU.

  mica run -m 8GiB -s 30 -- python train.py   run a program in a virtual GPU

  mica create team-a -m 8GiB -s 30            make a virtual GPU that stays
  mica exec team-a -- python train.py         run a program in it
  mica show team-a                            show all about it
  mica resize team-a -m 12GiB                 change its limits
  mica rm team-a                              remove it

  mica ls                                     list virtual GPUs
  mica top                                    watch them live
  mica doctor                                 check that every limit is in force
  mica demo                                   see each promise proven (40 s)

`mica --help` lists all commands, `mica COMMAND --help` explains one.";

pub(super) const MICA: &str = "\
Sizes are 8GiB, 8G, 8192MiB or 50% of a GPU; shares are percent of one GPU.
Every listing has --json. Exit codes: 0 done, 1 failed, 2 wrong usage.
run and exec return the program's own code; 127 if there is no such program, 126 if it cannot be run, 125 if Mica failed.";

pub(super) const RUN: &str = "\
Examples: mica run --memory 8GiB --share 30 -- python train.py
          mica run --seed 7 -- ./test

With --seed, kernels run one after the other in the order of their launches, and the blocks of a kernel begin in an order \
that the number chooses. On one core, the same program with the same input then computes the same bits every time: sums of \
floating-point atomics, the order of printf, who wins a race. Clocks still run, and launches from several threads or \
processes still come in any order.";

pub(super) const CHECK: &str = "\
Examples: mica check -- ./program
          mica check --tool memcheck,racecheck --sarif report.sarif -- ./tests

Build with -lineinfo for source lines. Exit code: the program's own, or --error-exitcode if mistakes were found.";

pub(super) const COV: &str = "\
Examples: mica cov -- ./tests
          mica cov --lcov cov.info --fail-under 80 -- ctest
          mica cov -a one.info -a two.info --lcov all.info    (only adds up)
          genhtml cov.info -o html

Build with -lineinfo for source lines. The count of a line is the number of processes that reached it; the count of a kernel \
is the number of its launches. Exit code: the program's own, or 1 if less than --fail-under was reached.";

pub(super) const PROFILE: &str = "\
Examples: mica profile -- ./program
          mica profile --trace trace.json -- python train.py
          mica profile --vgpu team-a --seconds 5

Exit code: the program's own.";

pub(super) const REGION: &str = "\
Example: mica region create weights -m 20GiB
         mica run --region weights:rw -- python load.py
         mica run --region weights -- python serve.py

Programs find the handle for cuIpcOpenMemHandle in MICA_REGION_WEIGHTS.";

pub(super) const TOP: &str = "\
Keys: ? shows all of them, q quits. If the output is not a terminal, one picture is printed as text.";

pub(super) const SMI: &str = "\
Examples: mica smi -L
          mica smi --query-vgpu=name,memory.used,utilization.gpu --format=csv

A field that does not exist is answered with the list of fields.";

pub(super) const CDI: &str = "\
Example: mica cdi generate --vgpu team-a --new 8GiB-30
         podman run --device mica.dev/vgpu=team-a IMAGE";

pub(super) const DASHBOARD: &str = "\
The address signs its first visitor in as you. It is valid once and for five minutes.
From another machine: ssh -L 7411:127.0.0.1:7411 HOST, then open the address there.";

pub(super) const COMPLETIONS: &str = "\
Example: mica completions bash > ~/.local/share/bash-completion/completions/mica";
