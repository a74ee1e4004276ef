//! Every view of the page in a real browser.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::browser::{Browser, Tab};
use super::stage::{ANN, Stage, TENANTS, TOKEN};

/// The page's own state.
const STORE: &str = "(await import('/js/store.js')).store";
const VIEWS: [(&str, &str); 4] = [
    ("overview", "#/"),
    ("tenant", "#/vgpu/train-llm"),
    ("events", "#/events"),
    ("health", "#/health"),
];

struct Check<'a> {
    browser: &'a mut Browser,
    tab: Tab,
    stage: &'a mut Stage,
    folder: &'a Path,
    axe: Option<&'a str>,
}

/// Runs every check; the first that fails ends the run with a picture of the page.
pub(super) fn all(
    browser: &mut Browser,
    stage: &mut Stage,
    folder: &Path,
    axe: Option<&str>,
) -> Result<()> {
    let tab = browser.tab(1440, 900)?;
    let mut check = Check {
        browser,
        tab,
        stage,
        folder,
        axe,
    };
    let steps: [(&str, fn(&mut Check<'_>) -> Result<()>); 10] = [
        ("signing in", Check::signing_in),
        ("overview, live", Check::overview),
        ("turns of the timeline", Check::turns),
        ("pictures, accessibility, widths", Check::looks),
        ("keyboard", Check::keyboard),
        ("actions", Check::actions),
        ("rights of another user", Check::rights),
        ("a daemon that is replaced", Check::restart),
        ("weight and first paint", Check::weight),
        ("a hundred virtual GPUs", Check::crowd),
    ];
    for (name, step) in steps {
        println!("==> {name}");
        if let Err(failure) = step(&mut check) {
            let file = check.folder.join("failure.png");
            let _ = check.browser.picture(&check.tab, &file, false);
            return Err(failure.context(format!("{name} (see {})", file.display())));
        }
    }
    Ok(())
}

impl Check<'_> {
    fn eval(&mut self, expression: &str) -> Result<Value> {
        self.browser.eval(&self.tab, expression)
    }

    fn until(&mut self, what: &str, expression: &str) -> Result<()> {
        self.browser.until(&self.tab, what, expression)
    }

    fn store(&mut self, expression: &str) -> Result<Value> {
        self.eval(&format!(
            "(async () => {{ const store = {STORE}; return {expression}; }})()"
        ))
    }

    fn until_store(&mut self, what: &str, expression: &str) -> Result<()> {
        let expression =
            format!("(async () => {{ const store = {STORE}; return {expression}; }})()");
        self.until(what, &expression)
    }

    fn go(&mut self, hash: &str) -> Result<()> {
        self.eval(&format!("void (location.hash = {})", json!(hash)))?;
        self.until("the view", "document.querySelector('main h1') !== null")
    }

    fn quiet(&mut self, allowed: &[&str]) -> Result<()> {
        let complaints = self.browser.complaints();
        let bad: Vec<_> = complaints
            .iter()
            .filter(|c| !allowed.iter().any(|a| c.contains(a)))
            .collect();
        ensure!(bad.is_empty(), "the page complains: {bad:?}");
        Ok(())
    }

    fn signing_in(&mut self) -> Result<()> {
        let url = self.stage.page()?;
        let page = url.split('#').next().unwrap_or_default().to_owned();
        self.browser.open(&self.tab, &page)?;
        self.until("the form", "document.querySelector('.sign-in') !== null")?;
        self.browser
            .picture(&self.tab, &self.folder.join("sign-in.png"), false)?;
        let enter = "(() => { const [n, t] = document.querySelectorAll('.sign-in input'); n.value = 'ann'; t.value = 'wrong'; \
             document.querySelector('.sign-in').requestSubmit(); })()";
        self.eval(enter)?;
        self.until(
            "a refusal",
            "document.querySelector('.trouble').innerText.includes('wrong')",
        )?;
        self.browser
            .open(&self.tab, &format!("{page}#ticket=00ff"))?;
        self.eval("location.reload()")?;
        self.until(
            "a refused ticket",
            "document.body.innerText.includes('used already')",
        )?;
        // A wrong token and a wrong ticket are answered 401, which browsers log.
        self.quiet(&["401"])?;
        self.browser.open(&self.tab, &url)?;
        self.eval("location.reload()")?;
        self.until(
            "the overview",
            "document.querySelector('.status.live') !== null",
        )?;
        self.until(
            "no ticket in the address",
            "!location.href.includes('ticket')",
        )?;
        let cookies = self.eval("document.cookie")?;
        ensure!(cookies == "", "scripts can read the cookie: {cookies}");
        self.browser.complaints();
        Ok(())
    }

    fn overview(&mut self) -> Result<()> {
        let count = TENANTS.len();
        let rows = "document.querySelectorAll('main tbody tr').length";
        self.until("a row each", &format!("{rows} === {count}"))?;
        self.until_store(
            "all work",
            &format!("store.vgpus.filter((v) => v.processes.length > 0).length === {count}"),
        )?;
        self.until_store("figures over time", "store.axis.length >= 5")?;
        let first = self.store("store.statsAt")?;
        self.until_store("new figures", &format!("store.statsAt > {first} + 2"))?;
        let before = self.eval("document.querySelector('main tbody').innerText")?;
        self.until(
            "figures that change",
            &format!("document.querySelector('main tbody').innerText !== {before}"),
        )?;
        let painted = "[...document.querySelectorAll('canvas')].every((c) => { \
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; \
            let some = 0; for (let i = 3; i < d.length; i += 4) some += d[i] > 0; return some > 50; })";
        self.until("every chart is drawn", painted)?;
        self.quiet(&[])
    }

    /// The timeline against the daemon's own account: time by turns and time charged.
    fn turns(&mut self) -> Result<()> {
        self.until_store("turns", "(store.turns.get(0)?.turns.length ?? 0) > 50")?;
        let sums = "(() => { const now = store.turns.get(0).now_ns; const from = now - 5e9; const sums = {}; \
            for (const t of store.turns.get(0).turns) { const e = Math.min(now, t.end_ns ?? now); const s = Math.max(from, t.start_ns); \
            if (e > s) sums[t.vgpu] = (sums[t.vgpu] ?? 0) + (e - s) / 5e9 * 100; } return sums; })()";
        std::thread::sleep(Duration::from_secs(5));
        let sums = self.store(sums)?;
        let total: f64 = sums
            .as_object()
            .map_or(0.0, |s| s.values().filter_map(Value::as_f64).sum());
        println!("    percent of the last 5 s by turns: {sums}, together {total:.0}");
        ensure!(
            total > 30.0 && total < 130.0,
            "turns make {total:.0} % of the time: {sums}"
        );
        self.quiet(&[])
    }

    fn looks(&mut self) -> Result<()> {
        for (name, hash) in VIEWS {
            self.go(hash)?;
            for (theme, dark) in [("light", false), ("dark", true)] {
                self.browser.dark(&self.tab, dark)?;
                for (width, height) in [(1440, 900), (390, 844)] {
                    self.browser.size(&self.tab, width, height)?;
                    std::thread::sleep(Duration::from_millis(1500));
                    let file = self.folder.join(format!("{name}-{theme}-{width}.png"));
                    self.browser.picture(&self.tab, &file, true)?;
                    let wide = self.eval("document.documentElement.scrollWidth")?;
                    ensure!(
                        wide.as_u64() <= Some(width.into()),
                        "{name} is {wide} wide at {width}"
                    );
                    self.accessible(&format!("{name}, {theme}, {width}"))?;
                }
            }
            self.browser.dark(&self.tab, false)?;
            self.browser.size(&self.tab, 1440, 900)?;
        }
        self.quiet(&[])
    }

    /// axe finds nothing serious.
    fn accessible(&mut self, where_: &str) -> Result<()> {
        let Some(axe) = self.axe else { return Ok(()) };
        if self.eval("typeof axe")? == "undefined" {
            self.eval(&format!("{axe};0"))?;
        }
        let found = self.eval(
            "axe.run(document, { resultTypes: ['violations'] }).then((r) => r.violations \
             .filter((v) => ['serious', 'critical'].includes(v.impact)) \
             .map((v) => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html + ' ' + (n.any[0]?.message ?? '')).join(' | ')}`))",
        )?;
        ensure!(found == json!([]), "axe, {where_}: {found}");
        Ok(())
    }

    fn key(&mut self, key: &str, text: Option<&str>) -> Result<()> {
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({ "type": kind, "key": key });
            if let (Some(text), "keyDown") = (text, kind) {
                event["text"] = json!(text);
            }
            self.browser
                .call(Some(&self.tab), "Input.dispatchKeyEvent", event)?;
        }
        Ok(())
    }

    fn keyboard(&mut self) -> Result<()> {
        self.go("#/")?;
        self.until(
            "the timeline",
            "document.querySelector('canvas.timeline') !== null",
        )?;
        self.eval("document.querySelector('canvas.timeline').focus()")?;
        self.key(" ", Some(" "))?;
        self.until(
            "a paused timeline",
            "[...document.querySelectorAll('button')].some((b) => b.textContent === 'Go on')",
        )?;
        self.key("+", Some("+"))?;
        let none = "![...document.querySelectorAll('.segments button')].some((b) => b.ariaPressed === 'true' && b.textContent === '2 s')";
        self.until("a closer look", none)?;
        self.browser
            .picture(&self.tab, &self.folder.join("timeline-closer.png"), false)?;
        self.eval("document.querySelector('canvas.chart').focus()")?;
        self.key("ArrowLeft", None)?;
        self.until(
            "a chart's figures by key",
            "[...document.querySelectorAll('.tip')].some((t) => !t.hidden)",
        )?;
        self.quiet(&[])
    }

    fn actions(&mut self) -> Result<()> {
        self.go("#/vgpu/notebook-ann")?;
        self.browser.click(&self.tab, "Suspend")?;
        self.until(
            "suspended",
            "document.querySelector('.badge.suspended') !== null",
        )?;
        let shown = self.stage.json(&["show", "notebook-ann", "--json"])?;
        ensure!(shown["state"] == "suspended", "{shown}");
        self.browser.click(&self.tab, "Resume")?;
        self.until(
            "active again",
            "document.querySelector('.title .badge.active') !== null",
        )?;
        self.browser.click(&self.tab, "Resize")?;
        self.until(
            "the dialog",
            "document.querySelector('dialog[open]') !== null",
        )?;
        self.accessible("dialog")?;
        self.browser
            .picture(&self.tab, &self.folder.join("resize.png"), false)?;
        self.eval("(() => { document.querySelector('dialog input').value = '300MiB'; document.querySelector('dialog form').requestSubmit(); })()")?;
        self.until("resized", "document.querySelector('dialog') === null")?;
        let shown = self.stage.json(&["show", "notebook-ann", "--json"])?;
        ensure!(shown["memory_limit_bytes"] == 300 << 20, "{shown}");
        self.browser.click(&self.tab, "New vGPU")?;
        self.until(
            "the dialog",
            "document.querySelector('dialog[open]') !== null",
        )?;
        let fill = |memory: &str| {
            format!(
                "(() => {{ const [n, m] = document.querySelectorAll('dialog input'); n.value = 'made-here'; m.value = '{memory}'; \
                     document.querySelector('dialog form').requestSubmit(); }})()"
            )
        };
        self.eval(&fill("lots"))?;
        self.until(
            "a refusal",
            "document.querySelector('dialog .trouble').innerText.includes('not a size')",
        )?;
        self.eval(&fill("900GiB"))?;
        self.until("the daemon's refusal", "document.querySelector('dialog .trouble').innerText.includes('made-here') || document.querySelector('dialog .trouble').innerText.includes('GiB')")?;
        self.browser
            .picture(&self.tab, &self.folder.join("create-refused.png"), false)?;
        self.eval(&fill("64MiB"))?;
        self.until("created", "document.querySelector('dialog') === null")?;
        self.go("#/")?;
        self.browser.click(&self.tab, "Actions for made-here")?;
        self.until(
            "the menu",
            "document.querySelector('.menu:popover-open') !== null",
        )?;
        self.browser
            .picture(&self.tab, &self.folder.join("menu.png"), false)?;
        self.browser.click(&self.tab, "Remove")?;
        self.until(
            "the question",
            "document.querySelector('dialog[open]') !== null",
        )?;
        self.eval("document.querySelector('dialog form').requestSubmit()")?;
        self.until_store("gone", "!store.byName.has('made-here')")?;
        self.go("#/vgpu/ci-runner")?;
        self.browser.click(&self.tab, "Cancel kernels")?;
        self.until(
            "the question",
            "document.querySelector('dialog[open]') !== null",
        )?;
        self.eval("document.querySelector('dialog form').requestSubmit()")?;
        self.go("#/events")?;
        self.until(
            "told",
            "document.querySelector('main tbody').innerText.includes('ci-runner')",
        )?;
        // A refused limit is answered 422, which browsers log.
        self.quiet(&["422", "40"])
    }

    fn rights(&mut self) -> Result<()> {
        let ann = self.browser.tab(1280, 800)?;
        let root_tab = std::mem::replace(&mut self.tab, ann);
        let url = self.stage.page()?;
        let page = url.split('#').next().unwrap_or_default().to_owned();
        self.browser.open(&self.tab, &page)?;
        self.until("the form", "document.querySelector('.sign-in') !== null")?;
        let enter = format!(
            "(() => {{ const [n, t] = document.querySelectorAll('.sign-in input'); n.value = 'ann'; t.value = {}; \
             document.querySelector('.sign-in').requestSubmit(); }})()",
            json!(TOKEN)
        );
        self.eval(&enter)?;
        self.until_store("figures", "store.daemon !== null && store.axis.length > 1")?;
        ensure!(
            self.store("store.vgpus.length")? == 0,
            "another user sees virtual GPUs"
        );
        let turns =
            self.store("[...store.turns.values()].reduce((n, g) => n + g.turns.length, 0)")?;
        ensure!(turns == 0, "another user sees {turns} turns");
        let ask = "(async () => { const { ask } = await import('/js/api.js'); const tried = []; \
            for (const [m, p] of [['GET', ''], ['POST', '/suspend'], ['POST', '/cancel'], ['DELETE', '?force=true'], ['POST', '/join']]) \
            tried.push(await ask(m, '/v1/vgpus/train-llm' + p).then(() => 200, (e) => e.status)); \
            tried.push(await ask('POST', '/v1/shutdown').then(() => 200, (e) => e.status)); \
            tried.push((await ask('GET', '/v1/events?follow=false')).length); return tried; })()";
        let tried = self.eval(ask)?;
        ensure!(
            tried == json!([404, 404, 404, 404, 404, 403, 0]),
            "another user: {tried}"
        );
        self.eval("(async () => (await import('/js/api.js')).ask('POST', '/v1/vgpus', { name: 'anns', memory_limit_bytes: 67108864 }))()")?;
        self.until_store("her own", "store.vgpus.length === 1")?;
        let owner = self.store("store.vgpus[0].owner_uid")?;
        ensure!(owner == ANN, "owned by {owner}");
        self.browser
            .picture(&self.tab, &self.folder.join("another-user.png"), false)?;
        self.eval("(async () => (await import('/js/api.js')).ask('DELETE', '/v1/vgpus/anns'))()")?;
        self.tab = root_tab;
        self.browser.complaints();
        Ok(())
    }

    fn restart(&mut self) -> Result<()> {
        self.go("#/")?;
        self.until("live", "document.querySelector('.status.live') !== null")?;
        let pid = self.store("store.daemon.pid")?;
        self.stage.restart_daemon()?;
        // The page is served again once somebody asks for it, at the same port.
        self.stage.page()?;
        self.until_store(
            "the new daemon's figures",
            &format!("store.daemon.pid !== {pid}"),
        )?;
        self.until(
            "live again, without signing in",
            "document.querySelector('.status.live') !== null",
        )?;
        let count = TENANTS.len() - 1;
        self.until_store(
            "programs come back",
            &format!("store.vgpus.filter((v) => v.processes.length > 0).length >= {count}"),
        )?;
        self.browser.complaints();
        Ok(())
    }

    fn weight(&mut self) -> Result<()> {
        self.eval("location.reload()")?;
        self.until("live", "document.querySelector('.status.live') !== null")?;
        let paint = self
            .eval("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1")?;
        let weight = self.eval("performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation')) \
            .filter((e) => !e.name.includes('/v1/')).reduce((n, e) => n + e.decodedBodySize, 0)")?;
        println!("    first paint {paint} ms, {weight} bytes uncompressed");
        ensure!(
            weight
                .as_f64()
                .is_some_and(|w| w > 20_000.0 && w < 300_000.0),
            "the page weighs {weight} bytes"
        );
        Ok(())
    }

    fn crowd(&mut self) -> Result<()> {
        for number in 0..100 {
            let name = format!("crowd-{number:02}");
            self.stage.run(&["create", &name, "-m", "8MiB"])?;
        }
        self.go("#/")?;
        self.until_store("all of them", "store.vgpus.length >= 100")?;
        let frames = "new Promise((done) => { let n = 0; const t0 = performance.now(); \
            const f = () => { n += 1; performance.now() - t0 < 3000 ? requestAnimationFrame(f) : done(n / 3); }; requestAnimationFrame(f); })";
        let frames = self.eval(frames)?;
        let work = self.eval("(async () => { const { changed } = await import('/js/store.js'); const t = performance.now(); \
            changed('stats'); return performance.now() - t; })()")?;
        println!(
            "    {frames:.0} frames a second with 100 tenants; one update of the page takes {work} ms"
        );
        self.browser
            .picture(&self.tab, &self.folder.join("crowd.png"), false)?;
        for number in 0..100 {
            self.stage.run(&["rm", &format!("crowd-{number:02}")])?;
        }
        self.quiet(&["401"])
    }
}

/// The pictures of the documents, from a real run.
pub(super) fn pictures(browser: &mut Browser, stage: &Stage, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let tab = browser.tab(1280, 860)?;
    browser.open(&tab, &stage.page()?)?;
    browser.until(
        &tab,
        "live",
        "document.querySelector('.status.live') !== null",
    )?;
    // Enough for the charts to show something.
    std::thread::sleep(Duration::from_secs(150));
    browser.picture(&tab, &folder.join("dashboard.png"), false)?;
    browser.dark(&tab, true)?;
    std::thread::sleep(Duration::from_secs(2));
    browser.picture(&tab, &folder.join("dashboard-dark.png"), false)?;
    browser.eval(&tab, "void (location.hash = '#/vgpu/train-llm')")?;
    browser.dark(&tab, false)?;
    std::thread::sleep(Duration::from_secs(3));
    browser.picture(&tab, &folder.join("dashboard-tenant.png"), false)
}
