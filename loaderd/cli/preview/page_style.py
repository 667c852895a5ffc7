"""How the page looks: in the reader's colours, light or dark, and from 400 pixels on."""

STYLE = """
:root { color-scheme: light dark; --paper: #f6f6f4; --card: #fff; --ink: #1b1b1b; --pale: #62625e;
  --line: #dcdcd6; --accent: #1f6f8b; --alarm: #b3261e; --mark: #ffb000; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #151617; --card: #1f2123; --ink: #ececea; --pale: #a3a5a6; --line: #34373a;
    --accent: #6cc0db; --alarm: #ff8a80; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
header, main { max-width: 1500px; margin: 0 auto; padding: 16px; }
header { padding-bottom: 0; }
h1 { margin: 0; font-size: 1.35rem; }
header p { margin: 4px 0 0; color: var(--pale); }
.labels { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 8px; margin: 12px 0 0;
  padding: 0; font-size: .85rem; }
.labels li { padding: 1px 8px; border: 1px solid var(--line); border-radius: 4px;
  background: linear-gradient(to right, color-mix(in srgb, var(--accent) 28%, transparent)
  calc(100% * var(--part, 0)), transparent 0); }
.switches { display: flex; gap: 16px; }
.switches label { cursor: pointer; }
main { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(230px, 1fr));
  align-items: start; }
article { min-width: 0; padding: 12px; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; }
article.faulty { border-color: var(--alarm); }
h2 { margin: 0; font-size: 1rem; overflow-wrap: anywhere; }
.key { margin: 0 0 8px; overflow-wrap: anywhere; font-size: .85rem; color: var(--pale); }
.bad { color: var(--alarm) !important; overflow-wrap: anywhere; }
figure { margin: 0 0 10px; }
figcaption { font-size: .8rem; overflow-wrap: anywhere; }
span { color: var(--pale); }
.layers { position: relative; width: 100%; max-height: 420px; margin: 0 auto; overflow: hidden;
  border-radius: 4px; background: var(--line); }
.layers > * { position: absolute; inset: 0; width: 100%; height: 100%; }
img { object-fit: contain; }
.matrix .layers { max-width: 150px; margin-left: 0; }
.pixels { image-rendering: pixelated; }
.mask { opacity: .55; }
.marks rect { fill: none; stroke: var(--mark); stroke-width: var(--u); }
.marks circle { fill: var(--mark); stroke: #000; stroke-width: calc(var(--u) / 4); }
.marks text { font: 600 calc(5 * var(--u)) system-ui, sans-serif; fill: var(--mark);
  stroke: #000; stroke-width: calc(var(--u) * .8); paint-order: stroke;
  transform: translateY(calc(4.5 * var(--u))) translateX(var(--u)); }
body:has(#masks:not(:checked)) .mask, body:has(#marks:not(:checked)) .marks { display: none; }
.curve { display: block; width: 100%; height: 72px; border-radius: 4px; background: var(--paper); }
.curve path { fill: none; stroke: var(--accent); stroke-width: 1.5;
  vector-effect: non-scaling-stroke; }
.curve.band path { fill: var(--accent); stroke-width: .5; }
.curve line { stroke: var(--line); vector-effect: non-scaling-stroke; }
pre { margin: 0; padding: 8px; max-height: 180px; overflow: auto; border-radius: 4px;
  background: var(--paper); white-space: pre-wrap; overflow-wrap: anywhere;
  font: .82rem/1.4 ui-monospace, monospace; }
table { width: 100%; border-collapse: collapse; font-size: .85rem; }
th, td { padding: 2px 0; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
th { width: 1%; max-width: 11em; padding-right: 10px; overflow: hidden; font-weight: 400;
  color: var(--pale); white-space: nowrap; text-overflow: ellipsis; }
.drawn { margin: 8px 0 0; padding: 8px 0 0; border-top: 1px solid var(--line); list-style: none;
  font-size: .8rem; color: var(--pale); }
@media (max-width: 560px) { header, main { padding: 10px; } main { gap: 10px;
  grid-template-columns: 1fr 1fr; } article { padding: 8px; } }
@media (max-width: 340px) { main { grid-template-columns: 1fr; } }
@media print { article { break-inside: avoid; } }
"""
