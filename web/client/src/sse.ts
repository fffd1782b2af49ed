/** One server-sent event. */
export interface ServerSentEvent {
  event: string;
  data: string;
  /** The last id that the server sent. */
  id: string | undefined;
}

/** Parser of server-sent events. The text can arrive in pieces of any size. */
export class SseParser {
  #rest = "";
  #event = "message";
  #data: string[] = [];
  #id: string | undefined;

  /** Add a piece of text and return the events that it completes. */
  feed(piece: string): ServerSentEvent[] {
    const lines = (this.#rest + piece).split("\n");
    this.#rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.#takeLine(line.replace(/\r$/, "")));
  }

  #takeLine(line: string): ServerSentEvent[] {
    if (line === "") return this.#complete();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id") this.#id = value;
    return [];
  }

  #complete(): ServerSentEvent[] {
    const completed = { event: this.#event, data: this.#data.join("\n"), id: this.#id };
    const isEmpty = this.#data.length === 0 && this.#id === undefined;
    this.#event = "message";
    this.#data = [];
    return isEmpty ? [] : [completed];
  }
}
