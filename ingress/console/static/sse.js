// The records of a text/event-stream, as they come: { event, data } or { comment }.

export async function* records(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = "";
  let data = [];
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const lines = rest.split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data.length) yield { event, data: data.join("\n") };
        event = "";
        data = [];
      } else if (line.startsWith(":")) {
        yield { comment: line.slice(1).trim() };
      } else {
        const [, name, text] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (name === "event") event = text;
        else if (name === "data") data.push(text);
      }
    }
  }
}
