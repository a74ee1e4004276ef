//! Every view of the page in a real browser.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::browser::{Browser, Tab};
use super::stage::{Stage, TENANTS};

/// The page's own state.
const STORE: &str = "(await import('/js/store.js')).store";
const VIEWS: [(&str, &str); 4] = [
    ("overview", "#/"),
    ("tenant", "#/vgpu/train-llm"),
    ("events", "#/events"),
    ("health", "#/health"),
];

pub(super) struct Check<'a> {
    pub(super) browser: &'a mut Browser,
    pub(super) tab: Tab,
    pub(super) stage: &'a mut Stage,
    pub(super) folder: &'a Path,
    pub(super) axe: Option<&'a str>,
}

/// Runs every check; the first that fails ends the run with a picture of the page.
pub(super) fn all<'a>(
    browser: &'a mut Browser,
    stage: &'a mut Stage,
    folder: &'a Path,
    axe: Option<&'a str>,
) -> Result<()> {
    let tab = browser.tab(1440, 900)?;
    let mut check = Check {
        browser,
        tab,
        stage,
        folder,
        axe,
    };
    type Step<'a> = (&'static str, fn(&mut Check<'a>) -> Result<()>);
    let steps: [Step<'a>; 11] = [
        ("signing in", Check::signing_in),
        ("overview, live", Check::overview),
        ("turns of the timeline", Check::turns),
        ("kernels of a tenant", Check::kernels),
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
    pub(super) fn eval(&mut self, expression: &str) -> Result<Value> {
        self.browser.eval(&self.tab, expression)
    }

    pub(super) fn until(&mut self, what: &str, expression: &str) -> Result<()> {
        self.browser.until(&self.tab, what, expression)
    }

    pub(super) fn store(&mut self, expression: &str) -> Result<Value> {
        self.eval(&format!(
            "(async () => {{ const store = {STORE}; return {expression}; }})()"
        ))
    }

    pub(super) fn until_store(&mut self, what: &str, expression: &str) -> Result<()> {
        let expression =
            format!("(async () => {{ const store = {STORE}; return {expression}; }})()");
        self.until(what, &expression)
    }

    pub(super) fn go(&mut self, hash: &str) -> Result<()> {
        self.eval(&format!("void (location.hash = {})", json!(hash)))?;
        self.until("the view", "document.querySelector('main h1') !== null")
    }

    pub(super) fn quiet(&mut self, allowed: &[&str]) -> Result<()> {
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
        self.until(
            "a refused ticket",
            "document.body.innerText.includes('used already')",
        )?;
        // A wrong token and a wrong ticket are answered 401, which browsers log.
        self.quiet(&["401"])?;
        // A ticket in an open page signs in too: the page loads itself anew.
        self.browser.open(&self.tab, &url)?;
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

    fn kernels(&mut self) -> Result<()> {
        self.go("#/vgpu/train-llm")?;
        let button = "document.querySelector('.kernels button')";
        self.until("a button", &format!("{button}?.hidden === false"))?;
        self.until_store("no profile", "!store.byName.get('train-llm').profiled")?;
        self.eval(&format!("{button}.click()"))?;
        let rows = "[...document.querySelectorAll('.kernels tbody tr')]";
        self.until(
            "its kernel",
            &format!("{rows}.some((r) => r.innerText.includes('burn'))"),
        )?;
        self.until("no second profile meanwhile", &format!("{button}.disabled"))?;
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
    pub(super) fn accessible(&mut self, where_: &str) -> Result<()> {
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
            "document.querySelector('div.timeline') !== null",
        )?;
        self.eval("document.querySelector('div.timeline').focus()")?;
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
}
