"use strict";

// What the daemon sends is data: it becomes text nodes and attributes, never markup.

const STAGES = ["read", "decode", "transform", "write"];
const at = (id) => document.getElementById(id);

function element(name, content, attributes = {}) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...(Array.isArray(content) ? content : [content ?? ""]));
  return made;
}

function say(id, text) {
  if (at(id).textContent !== text) at(id).textContent = text; // a screen reader is told of changes only
}

const percent = (part) => `${Math.round(100 * part)} %`;
const width = (part) => `${100 * part}%`;
const known = (value) => (value === null || value === undefined ? "" : String(value));

function table(id, caption, heads, rows, none) {
  if (!rows.length) {
    at(id).replaceChildren(element("caption", none));
    return;
  }
  at(id).replaceChildren(
    element("caption", caption),
    element("thead", element("tr", heads.map((head) => element("th", head, { scope: "col" })))),
    element("tbody", rows.map((row) => element("tr", row.map((cell, n) =>
      n ? element("td", cell instanceof Node ? cell : known(cell)) : element("th", known(cell), { scope: "row" }))))),
  );
}

function verdict(status) {
  const found = status.verdict;
  say("verdict", found ? found.text : "No trainer is attached.");
  at("setting").hidden = !found?.setting;
  say("setting", found?.setting ? `What would help most: ${found.setting}` : "");
  at("meter").hidden = !found;
  at("meter-bar").style.width = width(found ? found.wait_fraction : 0);
}

function plot(id, text, points, most) {
  const svg = at(id), space = "http://www.w3.org/2000/svg";
  svg.setAttribute("viewBox", "0 0 900 100");
  svg.setAttribute("preserveAspectRatio", "none");
  const line = document.createElementNS(space, "line");
  for (const [key, value] of [["x1", 0], ["x2", 900], ["y1", 98], ["y2", 98]]) line.setAttribute(key, value);
  const path = document.createElementNS(space, "path");
  let before = null, drawn = "";
  for (const [age, value] of points) { // a gap in time is a gap in the line
    const joined = before !== null && before - age < 15;
    drawn += `${joined ? "L" : "M"}${(900 - age).toFixed(1)} ${(98 - 94 * (most ? value / most : 0)).toFixed(1)}`;
    before = age;
  }
  path.setAttribute("d", drawn);
  svg.replaceChildren(line, path);
  say(`${id}-text`, text);
}

function plots(history) {
  const rates = history.map(([age, rate]) => [age, rate]), waits = history.map(([age, , wait]) => [age, wait]);
  const most = Math.max(0, ...rates.map(([, rate]) => rate)), last = history.at(-1);
  plot("rate", last ? `Batches a second: ${last[1].toFixed(1)} now, ${most.toFixed(1)} at most` :
    "Batches a second: nothing measured yet", rates, most);
  plot("wait", last ? `Time that the trainer waits: ${percent(last[2])} now, ${percent(Math.max(...waits.map(([, w]) => w)))} at most` :
    "Time that the trainer waits: nothing measured yet", waits, 1);
}

function stages(streams) {
  const shown = Object.entries(streams).filter(([, stream]) => stream.stage_s && STAGES.some((stage) => stream.stage_s[stage] > 0));
  at("stages").replaceChildren(...(shown.length ? shown.flatMap(([name, stream]) => {
    const sum = STAGES.reduce((total, stage) => total + stream.stage_s[stage], 0);
    const bar = element("div", STAGES.map((stage) => {
      const part = element("div", "", { class: stage });
      part.style.width = width(stream.stage_s[stage] / sum);
      return part;
    }), { class: "bar", "aria-hidden": "true" });
    const legend = element("ul", STAGES.map((stage) => element("li", [
      element("i", "", { class: stage, "aria-hidden": "true" }),
      `${stage} ${percent(stream.stage_s[stage] / sum)}`])), { class: "legend" });
    return [element("h3", `Stream ${name}`), bar, legend];
  }) : [element("p", "Nothing has been made yet.", { class: "none" })]));
}

function sessions(all) {
  table("sessions", "Every trainer that is attached",
    ["Stream", "Rank", "Epoch", "Step", "Batches made", "Waits", "It waits for", "Slots ready", "Shares"],
    all.map((s) => [s.stream, `${s.rank} of ${s.world_size}`, s.epoch, s.step, s.made,
      s.verdict ? percent(s.verdict.wait_fraction) : "", s.waiting ? s.story : "",
      s.slots ? (s.slots.ready ?? 0) + (s.slots.announced ?? 0) : "",
      s.group ? (s.lag ? `${s.lag} behind` : "yes") : ""]),
    "No trainer is attached.");
}

function groups(all) {
  at("groups-section").hidden = !all.length;
  table("groups", "Trainers that get the same batches, each of which is made once",
    ["Stream", "Trainers", "Batches made", "Announced", "Hit rate"],
    all.map((g) => [g.stream, g.sessions.length, g.made, g.told, percent(g.told ? g.hits / g.told : 0)]), "");
}

function workers(all, remote) {
  at("remote").hidden = !remote;
  say("remote", remote ? remote.text : "");
  table("workers", "Every worker process, and what it does now",
    ["Worker", ...(remote ? ["Node"] : []), "State", "Stream", "Row", "Stage", "Sample", "Seconds"],
    all.map((w) => [w.worker, ...(remote ? [w.remote ? w.node || "?" : ""] : []), w.state, w.stream, w.row,
      w.stage ?? w.doing, w.key, w.stage ? w.seconds.toFixed(1) : ""]),
    "No worker runs yet.");
}

let pictures = []; // of the bad samples, as they are stored: a browser shows what can be decoded of them

function stored(sample, picture) {
  if (!picture) return picture === null ? "not sent: there are too many" : "";
  const image = element("img", "", { src: `data:image/jpeg;base64,${picture}`, alt: `What is stored of ${sample.key}` });
  image.onerror = () => image.replaceWith("cannot be decoded");
  return image;
}

function bad(quarantine) {
  const tail = (quarantine?.tail ?? []).map((sample, n) => ({ ...sample, picture: pictures[n] }));
  say("bad-note", quarantine?.count ? `${quarantine.count} since the start. All are in ${quarantine.path}` : "");
  table("bad", "The latest first", ["Sample", "Stream", "Epoch", "Stage", "Error", "Message", "Stored"],
    tail.reverse().map((b) => [b.key, b.stream, b.epoch, b.stage, b.error, b.message, stored(b, b.picture)]),
    "No bad sample since the start.");
}

function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

function draw(picture) {
  const { width: wide, height, channels } = picture;
  const canvas = element("canvas", "", { width: wide, height });
  const values = bytes(picture.pixels);
  const image = new ImageData(wide, height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < wide; x++) {
      for (let c = 0; c < 4; c++) {
        const from = channels < 3 ? 0 : c;
        image.data[4 * (y * wide + x) + c] = c < 3 || channels === 4 ? values[(y * channels + from) * wide + x] : 255;
      }
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function sample(one) {
  const words = Object.entries(one.values).map(([name, value]) => `${name} ${value}`).join(", ");
  const pictures = Object.entries(one.pictures).map(([name, picture]) => {
    const canvas = draw(picture);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${name} of sample ${one.key}`);
    return canvas;
  });
  return element("li", [...pictures, element("div", one.key), element("div", words)]);
}

function seen(batches) {
  if (batches === null) {
    say("seen-note", "Samples are not shown: [daemon] thumbnails is false, or the address is not a loopback one.");
    return;
  }
  for (const batch of batches) {
    const id = `seen-${batch.stream}`;
    const made = element("div", [
      element("h3", `Stream ${batch.stream}: epoch ${batch.epoch}, position ${batch.position}, ${batch.rows} rows` +
        (batch.left_out ? `; ${batch.left_out} more fields are not shown` : "")),
      element("ul", batch.samples.map(sample), { class: "samples" }),
    ], { id });
    const old = at(id);
    if (old) old.replaceWith(made);
    else at("seen").append(made);
  }
}

function show(told) {
  const status = told.status;
  say("about", `${status.state}${status.failed ? ", failed" : ""} · version ${status.version} · process ${status.pid} · ${status.config || status.socket}`);
  at("about").classList.toggle("alarm", Boolean(status.failed));
  document.title = status.verdict ? `${status.verdict.kind} · loaderd` : "loaderd";
  verdict(status);
  plots(told.history);
  stages(status.streams);
  sessions(status.sessions);
  groups(status.groups ?? []); // a daemon of an earlier version has none
  workers(status.workers, status.pool?.remote);
  if (told.pictures) pictures = told.pictures;
  bad(status.quarantine);
  seen(told.seen);
}

function connect() {
  const events = new EventSource("events");
  events.onmessage = (event) => show(JSON.parse(event.data));
  events.onerror = () => {
    say("about", "The daemon does not answer; trying again.");
    at("about").classList.add("alarm");
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  };
}

connect();
