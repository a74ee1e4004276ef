//! A headless Chromium, driven over its DevTools protocol on a pair of pipes.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// Longest that an answer or a condition may take, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running browser.
pub(super) struct Browser {
    child: Child,
    pipe: ChildStdin,
    messages: Receiver<Value>,
    /// What came while an answer was waited for.
    events: VecDeque<Value>,
    next: u64,
}

/// One tab.
#[derive(Clone, Debug)]
pub(super) struct Tab {
    session: String,
}

impl Browser {
    /// Starts the browser with an empty profile in a folder.
    pub(super) fn start(program: &Path, profile: &Path) -> Result<Self> {
        let _ = std::fs::remove_dir_all(profile);
        // The protocol is on descriptors 3 and 4: the shell makes them of its standard input and output.
        let mut child = Command::new("sh")
            .args([
                "-c",
                "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1",
            ])
            .arg(program)
            .args([
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-first-run",
            ])
            .args([
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--force-color-profile=srgb",
            ])
            // The page under test is our own; root cannot have the sandbox.
            .args([
                "--no-sandbox",
                "--hide-scrollbars",
                "--no-default-browser-check",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the browser cannot be started")?;
        let pipe = child.stdin.take().context("no pipe to the browser")?;
        let output = child.stdout.take().context("no pipe from the browser")?;
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut bytes = Vec::new();
            while reader
                .read_until(0, &mut bytes)
                .is_ok_and(|count| count > 0)
            {
                bytes.pop();
                let message = serde_json::from_slice(&bytes).unwrap_or_default();
                if sender.send(message).is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        Ok(Self {
            child,
            pipe,
            messages,
            events: VecDeque::new(),
            next: 0,
        })
    }

    /// A tab with cookies and storage of its own.
    pub(super) fn tab(&mut self, width: u32, height: u32) -> Result<Tab> {
        let context = self.call(None, "Target.createBrowserContext", json!({}))?;
        let target =
            json!({ "url": "about:blank", "browserContextId": context["browserContextId"] });
        let target = self.call(None, "Target.createTarget", target)?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = self.call(None, "Target.attachToTarget", attach)?;
        let session = attached["sessionId"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let tab = Tab { session };
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            self.tell(&tab, domain, json!({}))?;
        }
        let clock = json!({ "timeDomain": "threadTicks" });
        self.tell(&tab, "Performance.enable", clock)?;
        self.size(&tab, width, height)?;
        Ok(tab)
    }

    /// Sets the size of a tab's window.
    pub(super) fn size(&mut self, tab: &Tab, width: u32, height: u32) -> Result<()> {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.tell(tab, "Emulation.setDeviceMetricsOverride", metrics)
    }

    /// Has pages see a dark or a light system.
    pub(super) fn dark(&mut self, tab: &Tab, dark: bool) -> Result<()> {
        let value = if dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.tell(tab, "Emulation.setEmulatedMedia", media)
    }

    /// Opens an address.
    pub(super) fn open(&mut self, tab: &Tab, url: &str) -> Result<()> {
        self.tell(tab, "Page.navigate", json!({ "url": url }))
    }

    /// The value of an expression in a tab.
    pub(super) fn eval(&mut self, tab: &Tab, expression: &str) -> Result<Value> {
        let what = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call(Some(tab), "Runtime.evaluate", what)?;
        if let Some(failure) = answer.get("exceptionDetails") {
            let words = failure["exception"]["description"].as_str();
            bail!("{expression}: {}", words.unwrap_or("failed"));
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    pub(super) fn until(&mut self, tab: &Tab, what: &str, expression: &str) -> Result<()> {
        let since = Instant::now();
        loop {
            // A page that is being replaced has no answer for a moment.
            if matches!(self.eval(tab, expression), Ok(Value::Bool(true))) {
                return Ok(());
            }
            if since.elapsed() > PATIENCE {
                let page = self
                    .eval(tab, "document.body.innerText")
                    .unwrap_or_default();
                bail!(
                    "{what}: never. {expression}\nThe page says:\n{}",
                    page.as_str().unwrap_or("")
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Clicks the first button or link in view that holds these words.
    pub(super) fn click(&mut self, tab: &Tab, words: &str) -> Result<()> {
        let words = json!(words);
        let found = format!(
            "(() => {{ const all = [...document.querySelectorAll('button, a, [role=menuitem]')]; \
             const one = all.filter((e) => e.checkVisibility()).reverse() \
             .find((e) => e.textContent.trim() === {words} || e.getAttribute('aria-label') === {words}); \
             one?.click(); return Boolean(one); }})()"
        );
        self.until(tab, &format!("a button {words}"), &found)
    }

    /// A picture of a tab: all of the page, or what is in view.
    pub(super) fn picture(&mut self, tab: &Tab, file: &Path, whole: bool) -> Result<()> {
        let mut what = json!({ "format": "png", "captureBeyondViewport": whole });
        if whole {
            let size = "({ width: innerWidth, height: document.documentElement.scrollHeight })";
            let size = self.eval(tab, size)?;
            what["clip"] = json!({ "x": 0, "y": 0, "scale": 1, "width": size["width"], "height": size["height"] });
        }
        let answer = self.call(Some(tab), "Page.captureScreenshot", what)?;
        let data = answer["data"]
            .as_str()
            .context("the browser sent no picture")?;
        std::fs::write(file, base64(data)?).with_context(|| file.display().to_string())
    }

    /// Errors that pages had since the last time: exceptions, and what the console was told.
    pub(super) fn complaints(&mut self) -> Vec<String> {
        while let Ok(message) = self.messages.try_recv() {
            self.events.push_back(message);
        }
        let events = std::mem::take(&mut self.events);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let complaint = |event: &Value| match event["method"].as_str()? {
            "Runtime.exceptionThrown" => {
                text(&event["params"]["exceptionDetails"]["exception"]["description"])
            }
            "Log.entryAdded" => {
                let entry = &event["params"]["entry"];
                let words = format!(
                    "{} {}",
                    text(&entry["text"])?,
                    entry["url"].as_str().unwrap_or("")
                );
                (entry["level"] == "error").then_some(words)
            }
            _ => None,
        };
        events.iter().filter_map(complaint).collect()
    }

    /// Begins to note which thread runs which task for how long.
    pub(super) fn trace(&mut self) -> Result<()> {
        let categories = ["disabled-by-default-devtools.timeline"];
        let what = json!({ "transferMode": "ReportEvents", "traceConfig": { "includedCategories": categories } });
        self.call(None, "Tracing.start", what).map(|_| ())
    }

    /// Ends that; returns what was noted.
    pub(super) fn traced(&mut self) -> Result<Vec<Value>> {
        self.call(None, "Tracing.end", json!({}))?;
        let is_end = |event: &Value| event["method"] == "Tracing.tracingComplete";
        while !self.events.iter().any(is_end) {
            let event = self.messages.recv_timeout(PATIENCE);
            self.events
                .push_back(event.context("the browser does not tell its tasks")?);
        }
        let (noted, others) = std::mem::take(&mut self.events)
            .into_iter()
            .partition::<VecDeque<_>, _>(|event| {
                event["method"]
                    .as_str()
                    .is_some_and(|method| method.starts_with("Tracing."))
            });
        self.events = others;
        let values = noted
            .iter()
            .filter_map(|event| event["params"]["value"].as_array());
        Ok(values.flatten().cloned().collect())
    }

    fn tell(&mut self, tab: &Tab, method: &str, parameters: Value) -> Result<()> {
        self.call(Some(tab), method, parameters).map(|_| ())
    }

    /// Calls a method of the protocol and waits for its answer.
    pub(super) fn call(
        &mut self,
        tab: Option<&Tab>,
        method: &str,
        parameters: Value,
    ) -> Result<Value> {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": parameters });
        if let Some(tab) = tab {
            message["sessionId"] = json!(tab.session);
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(0);
        self.pipe.write_all(&bytes).context("the browser is gone")?;
        loop {
            let mut answer = match self.messages.recv_timeout(PATIENCE) {
                Ok(answer) => answer,
                Err(RecvTimeoutError::Timeout) => bail!("the browser does not answer {method}"),
                Err(RecvTimeoutError::Disconnected) => bail!("the browser has ended"),
            };
            if answer["id"] != self.next {
                self.events.push_back(answer);
                continue;
            }
            ensure!(
                answer.get("error").is_none(),
                "{method}: {}",
                answer["error"]["message"]
            );
            return Ok(answer["result"].take());
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.call(None, "Browser.close", json!({}));
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(5) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes of a text in base 64.
fn base64(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for symbol in text.bytes().take_while(|b| *b != b'=') {
        let value = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            other => bail!("{other} is not base 64"),
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_64_gives_bytes_back() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("TWljYQ==", b"Mica"),
            ("AP/+", &[0, 255, 254]),
        ] {
            assert_eq!(base64(text).unwrap(), bytes);
        }
        assert!(base64("a-b").is_err());
    }
}
