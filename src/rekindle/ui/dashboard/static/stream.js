// A stream of messages from the server. It rests while nobody looks, and starts anew after a break:
// the server then sends everything once more, so that nothing is ever missing.

const listeners = new Set();
let state = "connecting";

export function connection() {
  return state;
}

export function onConnection(listener) {
  listeners.add(listener);
}

function report(next) {
  if (next === state) return;
  state = next;
  for (const listener of listeners) listener(state);
}

export function open(address, receive, signal, { missing = () => {} } = {}) {
  let source = null;
  let timer = null;

  function start() {
    stop();
    report("connecting");
    source = new EventSource(address);
    source.onopen = () => report("live");
    source.onmessage = (event) => receive(JSON.parse(event.data));
    source.onerror = () => {
      report("lost");
      if (source?.readyState === EventSource.CLOSED) retry();
    };
  }

  async function retry() {
    stop();
    if (await isMissing()) {
      report("live");
      missing();
    }
    timer = setTimeout(start, 2000);
  }

  // A stream does not say why it failed; a plain request does.
  async function isMissing() {
    const controller = new AbortController();
    try {
      const response = await fetch(address, { signal: controller.signal });
      return response.status === 404;
    } catch {
      return false;
    } finally {
      controller.abort();
    }
  }

  function stop() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  function onVisibility() {
    if (document.hidden) stop();
    else if (source === null) start();
  }

  document.addEventListener("visibilitychange", onVisibility, { signal });
  addEventListener("pagehide", stop, { signal });
  signal.addEventListener("abort", stop);
  if (!document.hidden) start();
}

let token = null;

export function takeToken() {
  const match = location.hash.match(/^#token=([\w-]+)$/);
  if (match) {
    try {
      sessionStorage.setItem("token", match[1]);
    } catch {
      // Then the token lasts as long as the page.
    }
    token = match[1];
    history.replaceState(null, "", location.pathname);
  }
}

async function currentToken(about) {
  if (about.token) return about.token;
  try {
    return token ?? sessionStorage.getItem("token") ?? "";
  } catch {
    return token ?? "";
  }
}

export async function stopRun(id) {
  const about = await (await fetch("/api/about")).json();
  const response = await fetch(`/api/stop?id=${encodeURIComponent(id)}`, {
    method: "POST",
    headers: { "X-Rekindle-Token": await currentToken(about) },
  });
  if (!response.ok) throw new Error(await response.text());
}

export async function getJson(address, signal) {
  const response = await fetch(address, { signal });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}
