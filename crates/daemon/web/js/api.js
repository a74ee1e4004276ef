// Talking to the daemon: requests, the session, the stream of what happens.

const KEY = "mica.page";

/** A refusal of the daemon, with its reason and hint. */
export class Refused extends Error {
  constructor(status, body) {
    super(body.error ?? `the daemon answered ${status}`);
    this.status = status;
    this.reason = body.reason ?? "";
    this.hint = body.hint ?? "";
  }
}

function headers(more = {}) {
  return { "X-Mica-Page": localStorage.getItem(KEY) ?? "", ...more };
}

/** Asks the daemon; the answer is JSON. */
export async function ask(method, path, body) {
  const options = { method, headers: headers(), credentials: "same-origin" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  const json = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, json);
  return json;
}

/** Who is signed in; a ticket in the address is used first. Nothing if nobody is. */
export async function session() {
  const ticket = /^#ticket=([0-9a-f]+)$/.exec(location.hash);
  if (ticket) {
    // Out of the address and of the history, whatever comes of it.
    history.replaceState(null, "", "#/");
    return signIn({ ticket: ticket[1] });
  }
  try {
    return await ask("GET", "/v1/session");
  } catch (error) {
    if (error.status === 401) return null;
    throw error;
  }
}

/** Signs in with a ticket, or a name and a token. */
export async function signIn(credentials) {
  const session = await ask("POST", "/v1/session", credentials);
  localStorage.setItem(KEY, session.page_key);
  return session;
}

/** Signs out. */
export async function signOut() {
  try {
    await ask("DELETE", "/v1/session");
  } finally {
    localStorage.removeItem(KEY);
  }
}

/** The path of a virtual GPU. */
export function vgpuPath(name, rest = "") {
  return `/v1/vgpus/${encodeURIComponent(name)}${rest}`;
}

/**
 * Follows the daemon for as long as the page is open; reconnects by itself.
 * `on` has a function for each kind of message, and `status` for the state of the connection.
 */
export async function follow(on) {
  let pause = 500;
  for (;;) {
    try {
      on.status("connecting");
      const answer = await fetch("/v1/live", { headers: headers(), credentials: "same-origin" });
      if (answer.status === 401) return on.status("signed out");
      if (!answer.ok) throw new Refused(answer.status, {});
      on.status("live");
      pause = 500;
      await read(answer.body, on);
    } catch (error) {
      // The visitor sees the status below; a mistake of the page itself would be seen nowhere else.
      console.warn("the connection to the daemon ended", error);
    }
    on.status("lost");
    await new Promise((wake) => setTimeout(wake, pause));
    pause = Math.min(pause * 2, 8000);
  }
}

/** Takes server-sent events apart. */
async function read(body, on) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const message = rest.slice(0, end);
      rest = rest.slice(end + 2);
      let kind = "message";
      let data = "";
      for (const line of message.split("\n")) {
        if (line.startsWith("event: ")) kind = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data && on[kind]) on[kind](JSON.parse(data));
    }
  }
}
