// Held open for as long as this page is: the server stops soon after the last page has gone.
window.harnessAlive = new EventSource("/harness-alive");

// A slice may be asked for, by its start and duration in nanoseconds and its track: it is selected,
// and shown with twice its length on either side, its track's rows at the top. All groups of tracks
// are to be open at first, except those of an item, such as a row of a batch. "#!/viewer" is where
// the UI goes once it shows a trace: after a reload it would find none there.
const slice = location.hash.match(/^#slice=(\d+),(\d+),(.*)$/);
const [ts, dur, track] = slice ? [+slice[1], +slice[2], decodeURIComponent(slice[3])] : TRACE_SLICE;
if (location.hash === "" || slice || location.hash.startsWith("#!/viewer")) {
  const commands = [{id: "dev.perfetto.ExpandTracksByRegex", args: ["^[^\[]*$"]}];
  const rows = track && `^${track.replace(/[^\w ]/g, "\\$&")}( \\(\\d+\\))?$`;
  if (track) commands.push({id: "dev.perfetto.PinTracksByRegex", args: [rows]});
  const at = ts === undefined ? "" : `&ts=${ts}&dur=${dur}&visStart=${ts}&visEnd=${ts + dur}`;
  location.replace("#!/?startupCommands=" + encodeURIComponent(JSON.stringify(commands)) + at);
}

// The panel with a slice's details is shut until it is asked for.
const panel = ts !== undefined && setInterval(() => {
  const trace = window.app?.trace;
  if (trace?.selection.selection.kind !== "track_event") return;
  trace.tabs.showTab("current_selection");
  clearInterval(panel);
}, 100);

// The UI names the page after the last word of the trace's address.
new MutationObserver(() => {
  if (document.title.startsWith("localtrace"))
    document.title = document.title.replace("localtrace", () => TRACE_NAME);
}).observe(document.querySelector("title"), {childList: true});
