//! What the page does: actions, rights, other daemons, crowds; and the pictures of the documents.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::browser::Browser;
use super::checks::Check;
use super::stage::{ANN, Stage, TENANTS, TOKEN};

const IS_DIALOG_OPEN: &str = "document.querySelector('dialog[open]') !== null";

impl Check<'_> {
    pub(super) fn actions(&mut self) -> Result<()> {
        self.suspend_and_resume()?;
        self.resize()?;
        self.create()?;
        self.remove()?;
        self.cancel()?;
        // A refused limit is answered 422, which browsers log.
        self.quiet(&["422", "40"])
    }

    fn suspend_and_resume(&mut self) -> Result<()> {
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
        )
    }

    /// Of the virtual GPU whose page is open.
    fn resize(&mut self) -> Result<()> {
        self.browser.click(&self.tab, "Resize")?;
        self.until("the dialog", IS_DIALOG_OPEN)?;
        self.accessible("dialog")?;
        self.browser
            .picture(&self.tab, &self.folder.join("resize.png"), false)?;
        self.eval("(() => { document.querySelector('dialog input').value = '300MiB'; document.querySelector('dialog form').requestSubmit(); })()")?;
        self.until("resized", "document.querySelector('dialog') === null")?;
        let shown = self.stage.json(&["show", "notebook-ann", "--json"])?;
        ensure!(shown["memory_limit_bytes"] == 300 << 20, "{shown}");
        Ok(())
    }

    /// After two requests that are refused, one by the page and one by the daemon.
    fn create(&mut self) -> Result<()> {
        self.browser.click(&self.tab, "+ New vGPU")?;
        self.until("the dialog", IS_DIALOG_OPEN)?;
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
        self.until("the daemon's refusal", "!document.querySelector('dialog .trouble').hidden && !document.querySelector('dialog .trouble').innerText.includes('not a size')")?;
        self.browser
            .picture(&self.tab, &self.folder.join("create-refused.png"), false)?;
        self.eval(&fill("64MiB"))?;
        self.until("created", "document.querySelector('dialog') === null")
    }

    fn remove(&mut self) -> Result<()> {
        self.go("#/")?;
        self.browser.click(&self.tab, "Actions for made-here")?;
        self.until(
            "the menu",
            "document.querySelector('.menu:popover-open') !== null",
        )?;
        self.browser
            .picture(&self.tab, &self.folder.join("menu.png"), false)?;
        self.browser.click(&self.tab, "Remove")?;
        self.until("the question", IS_DIALOG_OPEN)?;
        self.eval("document.querySelector('dialog form').requestSubmit()")?;
        self.until_store("gone", "!store.byName.has('made-here')")
    }

    fn cancel(&mut self) -> Result<()> {
        self.go("#/vgpu/ci-runner")?;
        self.browser.click(&self.tab, "Cancel kernels")?;
        self.until("the question", IS_DIALOG_OPEN)?;
        self.eval("document.querySelector('dialog form').requestSubmit()")?;
        self.go("#/events")?;
        self.until(
            "told",
            "document.querySelector('main tbody').innerText.includes('ci-runner')",
        )
    }

    pub(super) fn rights(&mut self) -> Result<()> {
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

    pub(super) fn restart(&mut self) -> Result<()> {
        self.go("#/")?;
        self.until("live", "document.querySelector('.status.live') !== null")?;
        let pid = self.store("store.daemon.pid")?;
        self.stage.restart_daemon()?;
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

    pub(super) fn weight(&mut self) -> Result<()> {
        // The page that is left answers until the new one is there.
        self.eval("void (window.isOld = true); location.reload()")?;
        let anew = "!window.isOld && document.querySelector('.status.live') !== null";
        self.until("live anew", anew)?;
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

    pub(super) fn crowd(&mut self) -> Result<()> {
        let each = |method: &str, path: &str, body: &str| {
            format!(
                "(async () => {{ const {{ ask }} = await import('/js/api.js'); for (let n = 0; n < 100; n += 1) \
                 await ask('{method}', `{path}`, {body}); }})()"
            )
        };
        let body = "{ name: `crowd-${n}`, memory_limit_bytes: 8388608 }";
        self.eval(&each("POST", "/v1/vgpus", body))?;
        self.go("#/")?;
        self.until_store("all of them", "store.vgpus.length >= 100")?;
        // Rows that come into being draw everything anew.
        std::thread::sleep(Duration::from_secs(2));
        let look = super::frames::look(self.browser, &self.tab)?;
        let work = self.eval("(async () => { const { changed } = await import('/js/store.js'); const t = performance.now(); \
            changed('stats'); return performance.now() - t; })()")?;
        println!("    frames with 100 tenants: {look}; one update takes {work} ms");
        self.browser
            .picture(&self.tab, &self.folder.join("crowd.png"), false)?;
        self.eval(&each("DELETE", "/v1/vgpus/crowd-${n}", "undefined"))?;
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
    std::thread::sleep(Duration::from_secs(100));
    browser.picture(&tab, &folder.join("dashboard.png"), false)?;
    browser.dark(&tab, true)?;
    std::thread::sleep(Duration::from_secs(2));
    browser.picture(&tab, &folder.join("dashboard-dark.png"), false)?;
    browser.eval(&tab, "void (location.hash = '#/vgpu/train-llm')")?;
    browser.dark(&tab, false)?;
    std::thread::sleep(Duration::from_secs(3));
    browser.picture(&tab, &folder.join("dashboard-tenant.png"), false)
}
