"use strict";
// Draws what /events tells. Texts of peers are set as text only, never as markup.
(() => {
  const minute = 120; // states in a minute, at two a second
  const rates = new Map(); // by link, the last minute's

  const at = (id) => document.getElementById(id);

  // put changes a text only when it is another, so that readers are not told again.
  const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };

  const bytes = (n) => {
    const units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let i = 0;
    for (; n >= 1000 && i < units.length - 1; i++) n /= 1000;
    return (i === 0 ? n.toFixed(0) : n.toFixed(n < 100 ? 1 : 0)) + " " + units[i];
  };
  const rate = (n) => (n > 0 ? bytes(n) + "/s" : "–");
  const seconds = (n) => (n === undefined ? "–" : n.toFixed(n < 10 ? 3 : 1) + " s");
  const since = (n) => {
    if (n < 60) return n.toFixed(0) + " s";
    if (n < 3600) return Math.floor(n / 60) + " min " + Math.floor(n % 60) + " s";
    return Math.floor(n / 3600) + " h " + Math.floor((n % 3600) / 60) + " min";
  };
  const clock = (t) => new Date(t).toLocaleTimeString();
  const seal = (sealed) => (sealed ? "sealed" : "in clear");
  const packed = (l) => (l.codec && l.saved > 0 ? " (" + l.codec + ": " + bytes(l.bytes - l.saved) + " on the wire)" : "");
  const links = (list) => (list || []).map((l) => l.link + " (" + seal(l.sealed) + ") " + bytes(l.bytes) + packed(l)).join(", ") || "–";
  const names = (list) => (list || []).join(", ") || "–";
  const verdict = (t) => t.state + (t.state === "partial" ? " " + t.blocks + "/" + t.total : "") + (t.reason ? ": " + t.reason : "");

  const cell = (content, kind) => {
    const td = document.createElement("td");
    if (content instanceof Node) td.append(content); else td.textContent = content;
    if (kind) td.className = kind;
    return td;
  };
  const head = (content) => {
    const th = document.createElement("th");
    th.scope = "row";
    if (content instanceof Node) th.append(content); else th.textContent = content;
    return th;
  };
  const code = (text) => {
    const c = document.createElement("code");
    c.textContent = text;
    return c;
  };
  const fill = (id, rows, columns, none) => {
    if (rows.length === 0) {
      const td = cell(none, "none");
      td.colSpan = columns;
      rows = [[td]];
    }
    at(id).replaceChildren(...rows.map((cells) => {
      const tr = document.createElement("tr");
      tr.append(...cells);
      return tr;
    }));
  };

  // blocks shows how many are visible, as a bar and in words.
  const blocks = (t) => {
    const span = document.createElement("span");
    if (t.total > 0) {
      const bar = document.createElement("progress");
      bar.max = t.total;
      bar.value = t.visible;
      bar.setAttribute("aria-label", "blocks visible");
      span.append(bar, " " + t.visible + " of " + t.total);
    } else {
      span.textContent = "none yet";
    }
    return span;
  };

  // line draws the rates of a link in the last minute.
  const line = (key, now) => {
    const list = rates.get(key) || [];
    list.push(now);
    if (list.length > minute) list.shift();
    rates.set(key, list);
    const top = Math.max(...list, 1);
    const ns = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(ns, "svg");
    svg.setAttribute("class", "rate");
    svg.setAttribute("viewBox", "0 0 " + minute + " 20");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", "at most " + rate(top) + " in the last minute");
    const path = document.createElementNS(ns, "polyline");
    path.setAttribute("points", list.map((v, i) => (minute - list.length + i) + "," + (19 - 18 * v / top).toFixed(1)).join(" "));
    svg.append(path);
    return svg;
  };

  const drawLinks = (s) => fill("links", s.links.map((l) => {
    const key = l.link + " (" + seal(l.sealed) + ")";
    return [head(key), cell(l.connections + " open, " + l.opened + " in all"), cell(rate(l.rate), "n"), cell(line(key, l.rate), "n"),
      cell(bytes(l.received_bytes), "n"), cell(bytes(l.sent_bytes), "n"), cell(String(l.damaged_pieces), l.damaged_pieces ? "n bad" : "n")];
  }), 7, "no connection yet");

  const drawTransfers = (s) => {
    put(at("open"), s.open > s.transfers.length ? "(" + s.transfers.length + " of " + s.open + ")" : "");
    fill("transfers", s.transfers.map((t) => [head(code(t.transfer)), cell(names(t.peers)), cell(links(t.links)), cell(blocks(t)),
      cell(bytes(t.bytes), "n"), cell(rate(t.rate), "n"), cell(since(t.seconds), "n")]), 7, "none");
    fill("done", s.done.map((t) => [cell(clock(t.ended)), head(code(t.transfer)),
      cell(verdict(t), "long " + (t.state === "complete" || t.state === "skipped" ? "good" : "bad")), cell(names(t.peers)), cell(links(t.links)),
      cell(t.blocks + " of " + t.total, "n"), cell(bytes(t.bytes), "n"), cell(seconds(t.seconds), "n"),
      cell(rate(t.seconds > 0 ? t.bytes / t.seconds : 0), "n")]), 9, "none yet");
  };

  const drawRequests = (s) => {
    at("front").hidden = !s.front;
    if (!s.front) return;
    put(at("running"), "(" + s.running + " running)");
    const number = (n) => (n === undefined ? "–" : String(n));
    fill("requests", s.requests.map((r) => [cell(clock(r.ended)), head(r.path), cell(r.model || "–"),
      cell(r.outcome + (r.reason ? ": " + r.reason : ""), "long " + (r.outcome === "declined" || r.less ? "bad" : "good")), cell(number(r.tokens), "n"),
      cell(number(r.promised), "n"), cell(number(r.cached_tokens), r.less ? "n bad" : "n"), cell(seconds(r.plan_seconds), "n"),
      cell(seconds(r.bridge_seconds), "n"), cell(seconds(r.first_seconds), "n"), cell(seconds(r.seconds), "n")]), 11, "none yet");
  };

  const drawHost = (s) => {
    fill("peers", s.peers.map((p) => [head(p.name || "–"), cell(p.proven ? "its key" : "its own word"), cell(p.link + " (" + seal(p.sealed) + ")"),
      cell(code(p.remote)), cell(String(p.lanes), "n"), cell(since(p.seconds), "n")]), 6, "none connected");
    const store = s.store;
    put(at("store"), !store ? "none" : store.dir + ": " + (store.error || bytes(store.free_bytes) + " free of " + bytes(store.size_bytes)));
    put(at("rings"), s.rings.map((r) => r.ring + ": " + r.used + " of " + r.slots + " slots in use").join("; ") || "none");
    put(at("dials"), s.dials.map((d) => d.link + ": " + d.connected + " connected, " + d.failed + " failed, " + d.lost + " lost").join("; ") || "none");
  };

  const status = (state, text) => {
    at("status").dataset.state = state;
    put(at("status"), text);
  };

  const draw = (s) => {
    const title = "pdlink " + s.program + " on " + s.host;
    if (document.title !== title) document.title = title;
    put(at("title"), title);
    put(at("about"), "version " + s.version + ", up " + since(s.seconds));
    status(s.ready ? "ready" : "lacks", s.ready ? "ready" : "not ready: " + s.lacks.join("; "));
    drawLinks(s);
    drawTransfers(s);
    drawRequests(s);
    drawHost(s);
  };

  // A browser opens events again by itself after a cut, but not after an answer that is none
  // (503: enough pages are open), and it notices no cut of a cable. Both are mended here.
  const silence = 20000; // ms without a state, which come twice a second: the connection is dead
  const first = 1000, most = 30000; // ms until it is tried again, twice as long each time
  let source = null, wait = first, timer = 0;

  const later = (f, ms) => { clearTimeout(timer); timer = setTimeout(f, ms); };
  const close = () => { clearTimeout(timer); if (source) source.close(); source = null; };
  const lost = () => {
    status("lost", "no connection to pdlink; what is shown is old; trying again …");
    if (source && source.readyState !== EventSource.CLOSED) return; // the browser tries
    later(open, wait * (0.75 + Math.random() / 2)); // not all pages at once
    wait = Math.min(2 * wait, most);
  };
  const dead = () => { close(); lost(); };
  const open = () => {
    close();
    source = new EventSource("events");
    source.onmessage = (e) => {
      wait = first;
      later(dead, silence);
      draw(JSON.parse(e.data));
    };
    source.onerror = lost;
    later(dead, silence);
  };
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (e) => { if (e.persisted) open(); });
  open();
})();
