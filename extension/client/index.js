//#region client/src/ids.ts
/** Return a random unique id. */
function newId() {
	if (crypto.randomUUID) return crypto.randomUUID();
	const bytes = crypto.getRandomValues(/* @__PURE__ */ new Uint8Array(16));
	return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
//#endregion
//#region client/src/breadcrumbs.ts
var Breadcrumbs = class {
	#client;
	constructor(client) {
		this.#client = client;
	}
	/** Return one page, and the cursor of the next page if there is one. */
	async list(query, signal) {
		const { data, response } = await this.#client.request("/breadcrumbs", {
			query,
			signal
		});
		if (!Array.isArray(data)) throw this.#client.malformed(response);
		const next = nextCursor(response);
		return next === void 0 ? { items: data } : {
			items: data,
			next
		};
	}
	/** Return a breadcrumb as it is stored, without hints applied. */
	full(id, signal) {
		return this.#client.json(`${pathOf$1(id)}/full`, { signal });
	}
	/** Return all versions. Reads as many pages as needed. */
	async history(id, signal) {
		const versions = [];
		let cursor;
		do {
			const { data, response } = await this.#client.request(`${pathOf$1(id)}/history`, {
				query: { cursor },
				signal
			});
			versions.push(...data);
			cursor = nextCursor(response);
		} while (cursor !== void 0);
		return versions;
	}
	/** Create a breadcrumb. A second call with the same key does not create a second one. */
	async create(crumb, idempotencyKey = newId(), signal) {
		const { data, response } = await this.#client.request("/breadcrumbs", {
			body: crumb,
			headers: { "idempotency-key": idempotencyKey },
			signal
		});
		if (typeof data?.id !== "string") throw this.#client.malformed(response);
		return data;
	}
	/** Replace fields. With a `version`, fails if it is not the current one. */
	update(id, changes, version) {
		return this.#client.json(pathOf$1(id), {
			method: "PATCH",
			body: changes,
			headers: version === void 0 ? {} : { "if-match": String(version) }
		});
	}
	remove(id) {
		return this.#client.json(pathOf$1(id), { method: "DELETE" });
	}
};
function pathOf$1(id) {
	return `/breadcrumbs/${encodeURIComponent(id)}`;
}
/** Return the cursor of the next page, from the Link header. */
function nextCursor(response) {
	const target = /<([^>]*)>\s*;\s*rel="?next"?/.exec(response.headers.get("link") ?? "")?.[1];
	const cursor = /[?&]cursor=([^&]+)/.exec(target ?? "")?.[1];
	return cursor === void 0 ? void 0 : decodeURIComponent(cursor);
}
//#endregion
//#region client/src/errors.ts
var MALFORMED_STATUS = 406;
var ApiError = class extends Error {
	failure;
	constructor(message, failure) {
		super(message);
		this.name = "ApiError";
		this.failure = failure;
	}
	/** HTTP status. 0 without a reply, 406 also for a malformed reply. */
	get status() {
		return this.failure.kind === "malformed" ? MALFORMED_STATUS : this.failure.status;
	}
	get problem() {
		return this.failure.problem;
	}
	/** Seconds to wait, from the `Retry-After` header. */
	get retryAfter() {
		return this.failure.retryAfter;
	}
	/** Whether the same request can succeed later. */
	get isRetryable() {
		return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
	}
};
/** Describe a failure in one sentence. */
function describeFailure({ kind, status, problem }) {
	switch (kind) {
		case "unreachable": return "The server cannot be reached.";
		case "timeout": return "The server does not respond.";
		case "malformed": return "The reply is not from a Breadcrumbs server.";
		case "refused": return sentence(problem?.detail ?? problem?.title ?? `The server replied with status ${status}.`);
	}
}
/** Read the reason why the server refused a request. */
async function readRefusal(server, response) {
	const retryAfter = Number(response.headers.get("retry-after")) || void 0;
	const problem = await readProblem(response);
	return {
		kind: "refused",
		server,
		status: response.status,
		statusText: response.statusText,
		...problem && { problem },
		...retryAfter && { retryAfter }
	};
}
async function readProblem(response) {
	try {
		const document = await response.json();
		return typeof document === "object" && document !== null ? document : void 0;
	} catch {
		return;
	}
}
/** Return the message of any thrown value. */
function messageOf(error) {
	return error instanceof Error ? error.message : String(error);
}
/** Return the text with a capital letter at the start and a full stop at the end. */
function sentence(text) {
	const first = text.charAt(0).toUpperCase() + text.slice(1);
	return /[.!?…]$/.test(first) ? first : `${first}.`;
}
//#endregion
//#region client/src/sessions.ts
/** Deleting a session deletes its breadcrumbs one by one, so it gets a longer timeout. */
var DELETE_TIMEOUT_FACTOR = 10;
var Sessions = class {
	#client;
	constructor(client) {
		this.#client = client;
	}
	list(query = {}, signal) {
		return this.#client.json("/sessions", {
			query,
			signal
		});
	}
	create(session = {}, key = newId()) {
		return this.#client.json("/sessions", {
			body: session,
			headers: { "idempotency-key": key }
		});
	}
	read(id, signal) {
		return this.#client.json(pathOf(id), { signal });
	}
	change(id, changes) {
		return this.#client.json(pathOf(id), {
			method: "PATCH",
			body: changes
		});
	}
	remove(id) {
		const timeoutMs = DELETE_TIMEOUT_FACTOR * this.#client.timeoutMs;
		return this.#client.json(pathOf(id), {
			method: "DELETE",
			timeoutMs
		});
	}
	/** Post a message. The first message of a session creates it. */
	async say(id, message, key, context) {
		return withDefaults((await this.#client.json(pathOf(id, "/messages"), {
			body: context ? {
				message,
				context
			} : { message },
			headers: { "idempotency-key": key }
		})).message);
	}
	async messages(id, query = {}, signal) {
		const page = await this.#client.json(pathOf(id, "/messages"), {
			query,
			signal
		});
		return {
			...page,
			messages: page.messages.map(withDefaults)
		};
	}
	fork(id, body = {}) {
		return this.#client.json(pathOf(id, "/fork"), { body });
	}
	/** Run the failed turn of a message again, by default the newest. */
	retry(id, messageId) {
		return this.#client.json(pathOf(id, "/retry"), { body: messageId === void 0 ? {} : { message_id: messageId } });
	}
	/** Stop the answers in progress in a session. */
	cancel(id, key = newId()) {
		return this.#client.breadcrumbs.create({
			schema_name: "agent.cancel.v1",
			title: "Cancel",
			tags: ["agent:cancel", `session:${id}`],
			context: {}
		}, key);
	}
};
function pathOf(id, more = "") {
	return `/sessions/${encodeURIComponent(id)}${more}`;
}
function withDefaults(message) {
	return {
		text: "",
		context: {},
		...message
	};
}
//#endregion
//#region client/src/client.ts
/** HTTP client of one server. Failed requests throw an `ApiError`. */
var TIMEOUT_MS = 3e4;
var Client = class {
	server;
	breadcrumbs;
	sessions;
	#options;
	constructor(options = {}) {
		this.server = options.server ?? "";
		this.#options = options;
		this.breadcrumbs = new Breadcrumbs(this);
		this.sessions = new Sessions(this);
	}
	get timeoutMs() {
		return this.#options.timeoutMs ?? TIMEOUT_MS;
	}
	/** Send a request and return the body of the reply. */
	async json(path, options = {}) {
		return (await this.request(path, options)).data;
	}
	/** Send a request and return the body of the reply, and the response for its headers. */
	async request(path, options = {}) {
		const deadline = new AbortController();
		const timer = setTimeout(() => deadline.abort(), options.timeoutMs ?? this.timeoutMs);
		const signal = options.signal ? AbortSignal.any([options.signal, deadline.signal]) : deadline.signal;
		try {
			const response = await this.#send(path, {
				...options,
				signal
			});
			return {
				data: await this.#read(response),
				response
			};
		} catch (error) {
			if (options.signal?.aborted) throw error;
			throw this.#asApiError(error, deadline.signal.aborted ? "timeout" : "unreachable");
		} finally {
			clearTimeout(timer);
		}
	}
	/** Send a request without a timeout and return the response. Its body is a stream. */
	async open(path, options = {}) {
		try {
			return await this.#send(path, options);
		} catch (error) {
			if (options.signal?.aborted) throw error;
			throw this.#asApiError(error, "unreachable");
		}
	}
	/** Return the error for a reply that does not come from a Breadcrumbs server. */
	malformed(response) {
		return this.#error({
			kind: "malformed",
			server: this.server,
			status: response.status,
			statusText: response.statusText
		});
	}
	async #send(path, options) {
		const token = options.token ?? this.#token();
		const headers = new Headers(options.headers);
		if (token) headers.set("authorization", `Bearer ${token}`);
		const init = {
			...this.#options.fetchOptions,
			method: options.method ?? (options.body === void 0 ? "GET" : "POST"),
			headers,
			signal: options.signal ?? null
		};
		if (options.body !== void 0) {
			if (!headers.has("content-type")) headers.set("content-type", "application/json");
			init.body = JSON.stringify(options.body);
		}
		const response = await (this.#options.fetch ?? fetch)(this.server + withQuery(path, options.query), init);
		if (response.ok) return response;
		const error = this.#error(await readRefusal(this.server, response));
		if (error.status === 401 && !options.quiet) this.#options.onUnauthorized?.(error, token);
		throw error;
	}
	async #read(response) {
		if (!response.headers.get("content-type")?.includes("json")) throw this.malformed(response);
		try {
			return await response.json();
		} catch (error) {
			throw error instanceof SyntaxError ? this.malformed(response) : error;
		}
	}
	#token() {
		const { token = "" } = this.#options;
		return typeof token === "string" ? token : token();
	}
	#asApiError(error, kind) {
		if (error instanceof ApiError) return error;
		return this.#error({
			kind,
			server: this.server,
			status: 0,
			statusText: ""
		});
	}
	#error(failure) {
		return new ApiError((this.#options.describeFailure ?? describeFailure)(failure), failure);
	}
};
/** Add a query to a path. Undefined and empty parameters are omitted. */
function withQuery(path, query = {}) {
	const pairs = new URLSearchParams();
	for (const [name, value] of Object.entries(query)) {
		if (value === void 0 || value === "") continue;
		if (Array.isArray(value)) for (const one of value) pairs.append(name, one);
		else pairs.append(name, String(value));
	}
	return pairs.size ? `${path}?${pairs}` : path;
}
//#endregion
//#region client/src/tokens.ts
/** Return the claims of a token without checking its signature. Returns null for an API key. */
function tokenClaims(token) {
	const payload = /^[\w-]+\.([\w-]+)\.[\w-]+$/.exec(token)?.[1];
	if (payload === void 0) return null;
	try {
		const binary = atob(payload.replaceAll("-", "+").replaceAll("_", "/"));
		const bytes = Uint8Array.from(binary, (char) => char.charCodeAt(0));
		return JSON.parse(new TextDecoder().decode(bytes));
	} catch {
		return null;
	}
}
//#endregion
//#region client/src/sse.ts
/** Parser of server-sent events. The text can arrive in pieces of any size. */
var SseParser = class {
	#rest = "";
	#event = "message";
	#data = [];
	#id;
	/** Add a piece of text and return the events that it completes. */
	feed(piece) {
		const lines = (this.#rest + piece).split("\n");
		this.#rest = lines.pop() ?? "";
		return lines.flatMap((line) => this.#takeLine(line.replace(/\r$/, "")));
	}
	#takeLine(line) {
		if (line === "") return this.#complete();
		const colon = line.indexOf(":");
		const name = colon < 0 ? line : line.slice(0, colon);
		const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
		if (name === "data") this.#data.push(value);
		else if (name === "event") this.#event = value;
		else if (name === "id") this.#id = value;
		return [];
	}
	#complete() {
		const completed = {
			event: this.#event,
			data: this.#data.join("\n"),
			id: this.#id
		};
		const isEmpty = this.#data.length === 0 && this.#id === void 0;
		this.#event = "message";
		this.#data = [];
		return isEmpty ? [] : [completed];
	}
};
//#endregion
//#region client/src/retries.ts
/** Return the delay before the next retry. It doubles with each failure, up to `longestMs`. */
function retryDelay({ firstMs, longestMs, jitter = .25 }, failures) {
	return Math.min(longestMs, firstMs * 2 ** failures) * (1 - jitter + 2 * jitter * Math.random());
}
/** A wait that ends after some time or when `end` is called. */
var Pause = class {
	#end = () => {};
	/** Wait for `ms`, or until `end` is called. */
	wait(ms) {
		return new Promise((resolve) => {
			const timer = ms === void 0 ? void 0 : setTimeout(resolve, ms);
			this.#end = () => {
				clearTimeout(timer);
				resolve();
			};
		});
	}
	end() {
		this.#end();
	}
};
//#endregion
//#region client/src/stream.ts
var BACKOFF = {
	firstMs: 400,
	longestMs: 1e4
};
var SILENCE_MS = 6e4;
var EventStream = class {
	#client;
	#handlers;
	#options;
	#end = new AbortController();
	#pause = new Pause();
	#query;
	#connection = new AbortController();
	#status = "connecting";
	#lastId;
	/** Whether the server rejected our position. The next connection then starts with new events. */
	#positionLost = false;
	#isSuspended = false;
	#failures = 0;
	constructor(client, query, handlers, options = {}) {
		this.#client = client;
		this.#query = query;
		this.#handlers = handlers;
		this.#options = options;
	}
	start() {
		this.#report({ status: "connecting" });
		this.#run();
	}
	stop() {
		this.#end.abort();
		this.#connection.abort();
		this.#pause.end();
	}
	/** Change the query. No event in between is lost. */
	follow(query) {
		this.#query = query;
		this.reconnect();
	}
	/** Retry now, without waiting for the delay. */
	retryNow() {
		this.#failures = 0;
		this.#pause.end();
	}
	/** Connect again immediately, even if the stream is open. */
	reconnect() {
		this.#isSuspended = false;
		if (this.#status !== "lost") this.#report({ status: "connecting" });
		this.#connection.abort();
		this.#pause.end();
	}
	/** Close the connection until `reconnect` is called. */
	suspend() {
		this.#isSuspended = true;
		this.#connection.abort();
		this.#pause.end();
	}
	async #run() {
		while (!this.#end.signal.aborted) {
			if (this.#isSuspended) {
				await this.#pause.wait();
				continue;
			}
			const connection = this.#connection = new AbortController();
			const state = await this.#connect(connection);
			if (connection.signal.aborted || state === void 0) continue;
			this.#report(state);
			await this.#waitAfter(state);
		}
	}
	/** Read the stream until it ends. Return the reason, or undefined to open it again immediately. */
	async #connect(connection) {
		try {
			await this.#follow(connection.signal);
			return {
				status: "lost",
				detail: "The server ended the connection."
			};
		} catch (error) {
			if (!(error instanceof ApiError)) return {
				status: "lost",
				detail: "The connection broke."
			};
			if (error.status === 422 && this.#lastId !== void 0) {
				this.#lastId = void 0;
				this.#positionLost = true;
				return;
			}
			return {
				status: error.isRetryable || this.#options.retryRefusals ? "lost" : "refused",
				detail: error.message,
				error
			};
		}
	}
	async #waitAfter({ status, error }) {
		if (status === "refused") {
			await this.#pause.wait();
			if (!this.#end.signal.aborted) this.#report({ status: "connecting" });
			return;
		}
		const delay = retryDelay(this.#options.backoff ?? BACKOFF, this.#failures++);
		await this.#pause.wait(error?.retryAfter === void 0 ? delay : error.retryAfter * 1e3);
	}
	async #follow(connection) {
		const silence = new AbortController();
		const watch = () => setTimeout(() => silence.abort(), this.#options.silenceMs ?? SILENCE_MS);
		let timer = watch();
		try {
			const signal = AbortSignal.any([connection, silence.signal]);
			const resumed = this.#lastId !== void 0;
			const reader = await this.#open(signal);
			let isOpen = resumed;
			if (resumed) this.#opened(true);
			const parser = new SseParser();
			for (;;) {
				const { value, done } = await reader.read();
				if (done) return;
				clearTimeout(timer);
				timer = watch();
				for (const message of parser.feed(value)) {
					this.#failures = 0;
					if (message.id) this.#lastId = message.id;
					if (!isOpen) this.#opened(false);
					isOpen = true;
					reportErrors(() => this.#dispatch(message));
				}
			}
		} finally {
			clearTimeout(timer);
		}
	}
	async #open(signal) {
		const accessToken = await this.#options.accessToken?.();
		signal.throwIfAborted();
		const response = await this.#client.open("/events/stream", {
			query: {
				...this.#query,
				last_event_id: this.#lastId,
				access_token: accessToken
			},
			headers: { accept: "text/event-stream" },
			signal,
			...accessToken !== void 0 && {
				token: "",
				quiet: true
			}
		});
		if (!response.body || !response.headers.get("content-type")?.startsWith("text/event-stream")) throw this.#client.malformed(response);
		return response.body.pipeThrough(new TextDecoderStream()).getReader();
	}
	#opened(resumed) {
		this.#report({ status: "open" });
		if (this.#positionLost) this.#handlers.onGap?.();
		this.#handlers.onOpen?.(resumed || this.#positionLost);
		this.#positionLost = false;
	}
	#dispatch({ event, data }) {
		if (!data) return;
		switch (event) {
			case "message": return this.#handlers.onEvent(JSON.parse(data));
			case "agent.response.delta": return this.#handlers.onDelta?.(JSON.parse(data));
			case "ping": return this.#handlers.onTime?.(JSON.parse(data).ts);
			case "gap": return this.#handlers.onGap?.();
		}
	}
	#report(state) {
		this.#status = state.status;
		this.#handlers.onState?.(state);
	}
};
/** Call a handler. Report its error as uncaught, so that it does not end the connection. */
function reportErrors(handle) {
	try {
		handle();
	} catch (error) {
		queueMicrotask(() => {
			throw error;
		});
	}
}
//#endregion
//#region client/src/outbox.ts
/**
* Queue of messages that the server has not confirmed. They are stored and sent in order until the server accepts or
* refuses them. Each has an idempotency key, so a retry never writes twice.
*/
/** Idempotency keys expire on the server after a day by default. One hour is a safety margin. */
var KEY_LIFETIME_MS = 828e5;
/** Whether a retry could write an entry twice, because its key has expired. */
function isKeyExpired({ tried, at }) {
	return tried && Date.now() - at > KEY_LIFETIME_MS;
}
var Outbox = class {
	#options;
	#end = new AbortController();
	#pause = new Pause();
	#failures = 0;
	constructor(options) {
		this.#options = options;
	}
	/** Add an entry. A synchronous storage has it when this returns. */
	async add(fields) {
		const entry = {
			key: newId(),
			...fields,
			at: Date.now(),
			tried: false
		};
		await this.#options.storage.change((entries) => [...entries, entry]);
		this.wake();
	}
	async remove(key) {
		await this.#options.storage.change((entries) => entries.filter((entry) => entry.key !== key));
		this.wake();
	}
	/** Change an entry, for example to send it again. */
	async update(key, fields) {
		await this.#mark(key, fields);
		this.wake();
	}
	/** Check the entries now. */
	wake() {
		this.#pause.end();
	}
	/** Check the entries now, and reset the delay between retries. */
	retryNow() {
		this.#failures = 0;
		this.wake();
	}
	stop() {
		this.#end.abort();
		this.wake();
	}
	/** Send entries until `stop` is called. Only one window may run this for a shared storage. */
	async run() {
		const { storage, isWaiting } = this.#options;
		while (!this.#end.signal.aborted) {
			const change = this.#pause.wait();
			const next = (await storage.read()).find((entry) => isWaiting(entry));
			if (next) await this.#process(next);
			else await change;
		}
	}
	async #process(entry) {
		const objection = this.#options.objection?.(entry);
		if (objection !== void 0) {
			await this.#mark(entry.key, this.#options.marks.refused(objection));
			return;
		}
		if (!entry.tried) await this.#mark(entry.key, { tried: true });
		try {
			const result = await this.#options.send(entry, this.#end.signal);
			this.#failures = 0;
			await this.#confirm(entry, result);
		} catch (error) {
			if (!this.#end.signal.aborted) await this.#handleError(entry, error);
		}
	}
	async #confirm(entry, result) {
		const { marks, onSent } = this.#options;
		if (marks.sent) await this.#mark(entry.key, marks.sent(result));
		onSent?.(entry, result);
		await this.remove(entry.key);
	}
	async #handleError(entry, error) {
		const { marks, backoff } = this.#options;
		if (!(error instanceof ApiError && error.isRetryable)) {
			this.#failures = 0;
			await this.#mark(entry.key, marks.refused(messageOf(error), error));
			return;
		}
		if (marks.waiting) await this.#mark(entry.key, marks.waiting(error.message));
		const delay = retryDelay(backoff, this.#failures++);
		await this.#pause.wait(error.retryAfter === void 0 ? delay : error.retryAfter * 1e3);
	}
	async #mark(key, fields) {
		await this.#options.storage.change((entries) => entries.map((entry) => entry.key === key ? {
			...entry,
			...fields
		} : entry));
	}
};
//#endregion
//#region client/src/markdown.ts
var MAX_DEPTH = 8;
var MAX_COLUMNS = 64;
var MAX_ADDRESS_LENGTH = 1500;
var FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]{0,40})[^`\n]*$/;
var HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
var RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
var QUOTE = /^ {0,3}> ?/;
var ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+(.*))?$/;
var TASK = /^\[([ xX])\][ \t]+/;
var DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
/** Split the text into its top-level blocks. Appending text changes only the last block. */
function splitMarkdown(text) {
	const lines = text.replaceAll("\r\n", "\n").split("\n");
	const found = [];
	for (let at = 0; at < lines.length;) {
		const { end } = blockAt(lines, at, 0);
		const piece = lines.slice(at, end).join("\n");
		if (piece.trim()) found.push(piece);
		at = end;
	}
	return found;
}
function parseMarkdown(text) {
	return blocksOf(text.replaceAll("\r\n", "\n").split("\n"), 0);
}
function blocksOf(lines, depth) {
	const found = [];
	for (let at = 0; at < lines.length;) {
		const { block, end } = blockAt(lines, at, depth);
		if (block) found.push(block());
		at = end;
	}
	return found;
}
function blockAt(lines, at, depth) {
	const line = lines[at] ?? "";
	if (!line.trim()) return { end: at + 1 };
	const fence = FENCE.exec(line);
	if (fence) {
		const [, mark = "", language = ""] = fence;
		let stop = at + 1;
		while (stop < lines.length && !closes(lines[stop] ?? "", mark)) stop += 1;
		return {
			block: () => ({
				type: "code",
				language,
				code: lines.slice(at + 1, stop).join("\n")
			}),
			end: stop + 1
		};
	}
	const heading = HEADING.exec(line);
	if (heading) {
		const [, marks = "", words = ""] = heading;
		const text = words.replace(/[ \t]+#+[ \t]*$/, "");
		return {
			block: () => ({
				type: "heading",
				depth: marks.length,
				text: inline(text)
			}),
			end: at + 1
		};
	}
	if (RULE.test(line)) return {
		block: () => ({ type: "rule" }),
		end: at + 1
	};
	if (QUOTE.test(line) && depth < MAX_DEPTH) {
		let end = at + 1;
		while (end < lines.length && (QUOTE.test(lines[end] ?? "") || continues(lines[end] ?? ""))) end += 1;
		const quoted = () => lines.slice(at, end).map((other) => other.replace(QUOTE, ""));
		return {
			block: () => ({
				type: "quote",
				blocks: blocksOf(quoted(), depth + 1)
			}),
			end
		};
	}
	if (ITEM.test(line) && depth < MAX_DEPTH) return listAt(lines, at, depth);
	if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "")) {
		const head = cells(line);
		if (cells(lines[at + 1] ?? "").length === head.length) return tableAt(lines, at, head);
	}
	let end = at + 1;
	while (end < lines.length && continues(lines[end] ?? "")) end += 1;
	const text = () => lines.slice(at, end).map((other) => other.trimStart()).join("\n").trimEnd();
	return {
		block: () => ({
			type: "paragraph",
			text: inline(text())
		}),
		end
	};
}
function closes(line, mark) {
	const text = line.trim();
	return text.length >= mark.length && text === (mark[0] ?? "").repeat(text.length);
}
/** Whether a line continues the paragraph above it. */
function continues(line) {
	return line.trim() !== "" && !FENCE.test(line) && !HEADING.test(line) && !RULE.test(line) && !QUOTE.test(line) && !ITEM.test(line);
}
var indentOf = (line) => line.length - line.trimStart().length;
function listAt(lines, from, depth) {
	const first = ITEM.exec(lines[from] ?? "");
	const indent = first?.[1]?.length ?? 0;
	const isOrdered = (mark) => mark !== void 0 && mark.length > 1;
	const ordered = isOrdered(first?.[2]);
	const inside = [];
	let at = from;
	while (at < lines.length) {
		const item = ITEM.exec(lines[at] ?? "");
		if (!item || isOrdered(item[2]) !== ordered || RULE.test(lines[at] ?? "")) break;
		const width = (item[1]?.length ?? 0) + (item[2]?.length ?? 0) + 1;
		const own = [item[3] ?? ""];
		at += 1;
		for (let blank = false; at < lines.length; at += 1) {
			const line = lines[at] ?? "";
			if (!line.trim()) {
				blank = true;
				own.push("");
				continue;
			}
			if (!(indentOf(line) >= indent + 2 || !blank && continues(line))) break;
			blank = false;
			own.push(line.slice(Math.min(indentOf(line), width)));
		}
		inside.push(own);
	}
	const start = ordered ? Number.parseInt(first?.[2] ?? "1", 10) : null;
	return {
		block: () => ({
			type: "list",
			start,
			items: inside.map((own) => itemOf(own, depth))
		}),
		end: Math.max(at, from + 1)
	};
}
function itemOf(lines, depth) {
	const task = TASK.exec(lines[0] ?? "");
	if (!task) return { blocks: blocksOf(lines, depth + 1) };
	const words = [(lines[0] ?? "").slice(task[0].length), ...lines.slice(1)];
	return {
		done: task[1] !== " ",
		blocks: blocksOf(words, depth + 1)
	};
}
function tableAt(lines, at, head) {
	let end = at + 2;
	while (end < lines.length && continues(lines[end] ?? "")) end += 1;
	const rows = () => lines.slice(at + 2, end).map((line) => {
		const row = cells(line);
		return head.map((_, column) => inline(row[column] ?? ""));
	});
	return {
		block: () => ({
			type: "table",
			head: head.map((cell) => inline(cell)),
			rows: rows()
		}),
		end
	};
}
function cells(line) {
	return line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/, MAX_COLUMNS).map((cell) => cell.trim().replaceAll("\\|", "|"));
}
var PUNCTUATION = /[\p{P}\p{S}]/u;
var SPECIAL = /[\\`*_~[\]!\n&h]/g;
var ESCAPED = /[!-/:-@[-`{-~]/;
var BARE = /https?:\/\/[^\s<>"`]+/y;
var REFERENCE = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,8}));/y;
function inline(text) {
	const parts = [];
	const brackets = [];
	const ticks = tickRuns(text);
	let paren = 0;
	let plain = "";
	let at = 0;
	const flush = () => {
		if (plain) parts.push(plain);
		plain = "";
	};
	while (at < text.length) {
		SPECIAL.lastIndex = at;
		const next = SPECIAL.exec(text)?.index ?? text.length;
		plain += text.slice(at, next);
		at = next;
		const char = text[at];
		if (char === void 0) break;
		if (char === "\\") {
			const escaped = text[at + 1] ?? "";
			if (ESCAPED.test(escaped)) {
				plain += escaped;
				at += 2;
				continue;
			}
		} else if (char === "`") {
			const run = runAt(text, at);
			const close = ticks.closing(run, at);
			if (close === void 0) {
				plain += "`".repeat(run);
				at += run;
			} else {
				flush();
				parts.push({
					type: "code",
					code: codeText(text.slice(at + run, close))
				});
				at = close + run;
			}
			continue;
		} else if (char === "\n") {
			plain = plain.trimEnd();
			flush();
			parts.push({ type: "break" });
			at += 1;
			continue;
		} else if (char === "*" || char === "_" || char === "~") {
			const length = runAt(text, at);
			if (char === "~" && length !== 2) plain += char.repeat(length);
			else {
				flush();
				parts.push(delimiter(text, at, char, length));
			}
			at += length;
			continue;
		} else if (char === "[" || char === "!" && text[at + 1] === "[") {
			flush();
			brackets.push({
				bracket: true,
				image: char === "!",
				part: parts.length
			});
			parts.push(char === "!" ? "![" : "[");
			at += char === "!" ? 2 : 1;
			continue;
		} else if (char === "]") {
			const opener = brackets.pop();
			const maybe = opener !== void 0 && text[at + 1] === "(";
			if (maybe && paren >= 0 && paren < at + 2) paren = text.indexOf(")", at + 2);
			const target = maybe && paren >= 0 && paren - at < MAX_ADDRESS_LENGTH ? targetAt(text, at + 2) : void 0;
			if (opener && target) {
				flush();
				const label = emphasised(parts.splice(opener.part).slice(1));
				parts.push(link(target.address, label));
				if (!opener.image) brackets.length = 0;
				at = target.end;
				continue;
			}
		} else if (char === "h") {
			BARE.lastIndex = at;
			const found = wordBefore(text, at) ? null : BARE.exec(text);
			if (found && brackets.length === 0) {
				const address = withoutTail(found[0]);
				if (safeAddress(address) !== null) {
					flush();
					parts.push(link(address, [address]));
					at += address.length;
					continue;
				}
			}
		} else if (char === "&") {
			REFERENCE.lastIndex = at;
			const found = REFERENCE.exec(text);
			const resolved = found && resolveReference(found);
			if (found && resolved) {
				plain += resolved;
				at += found[0].length;
				continue;
			}
		}
		plain += char;
		at += 1;
	}
	flush();
	return emphasised(parts);
}
function runAt(text, at) {
	let end = at;
	while (text[end] === text[at] && end < text.length) end += 1;
	return end - at;
}
/** Index all runs of backticks by length, so that finding the end of a code span takes constant time. */
function tickRuns(text) {
	const byLength = /* @__PURE__ */ new Map();
	for (const found of text.matchAll(/`+/g)) {
		const places = byLength.get(found[0].length) ?? [];
		places.push(found.index);
		byLength.set(found[0].length, places);
	}
	const passed = /* @__PURE__ */ new Map();
	return { closing(length, after) {
		const places = byLength.get(length) ?? [];
		let index = passed.get(length) ?? 0;
		while ((places[index] ?? Infinity) <= after) index += 1;
		passed.set(length, index);
		return places[index];
	} };
}
function codeText(code) {
	const line = code.replaceAll("\n", " ");
	return line.startsWith(" ") && line.endsWith(" ") && line.trim() ? line.slice(1, -1) : line;
}
function wordBefore(text, at) {
	return at > 0 && /[\w/]/.test(text[at - 1] ?? "");
}
/** Return a delimiter run, with the left- and right-flanking rules of CommonMark. */
function delimiter(text, at, mark, length) {
	const before = text[at - 1] ?? " ";
	const after = text[at + length] ?? " ";
	const space = (char) => char.trim() === "";
	const left = !space(after) && (!PUNCTUATION.test(after) || space(before) || PUNCTUATION.test(before));
	const right = !space(before) && (!PUNCTUATION.test(before) || space(after) || PUNCTUATION.test(after));
	const word = mark === "_";
	return {
		mark,
		count: length,
		length,
		opens: left && (!word || !right || PUNCTUATION.test(before)),
		closes: right && (!word || !left || PUNCTUATION.test(after))
	};
}
var isDelimiter = (part) => typeof part === "object" && "mark" in part;
/**
* Match opening and closing delimiters with the algorithm of CommonMark. `bottoms` keeps the time linear: openers that
* were searched without a match are not searched again.
*/
function emphasised(parts) {
	const out = [];
	const openers = [];
	const bottoms = /* @__PURE__ */ new Map();
	for (const part of parts) {
		if (!isDelimiter(part)) {
			out.push(part);
			continue;
		}
		const closer = { ...part };
		while (closer.closes && closer.count > 0) {
			const kind = `${closer.mark}${closer.opens}${closer.length % 3}`;
			const bottom = bottoms.get(kind) ?? 0;
			let top = openers.length - 1;
			while (top >= bottom && !matches(out[openers[top] ?? 0], closer)) top -= 1;
			if (top < bottom) {
				bottoms.set(kind, openers.length);
				break;
			}
			const place = openers[top] ?? 0;
			const opener = out[place];
			const used = closer.mark === "~" || opener.count >= 2 && closer.count >= 2 ? 2 : 1;
			const children = out.splice(place + 1).map(asText);
			openers.length = top + 1;
			for (const [name, height] of bottoms) bottoms.set(name, Math.min(height, openers.length));
			opener.count -= used;
			closer.count -= used;
			if (opener.count === 0) {
				out.pop();
				openers.pop();
			}
			out.push(...wrapped(closer.mark === "~" ? "del" : used === 2 ? "strong" : "em", children));
		}
		if (closer.count > 0) {
			if (closer.opens) openers.push(out.length);
			out.push(closer);
		}
	}
	return out.map(asText);
}
function matches(opener, closer) {
	if (opener === void 0 || !isDelimiter(opener) || opener.mark !== closer.mark) return false;
	if (!(opener.closes || closer.opens)) return true;
	return (opener.length + closer.length) % 3 !== 0 || opener.length % 3 === 0 && closer.length % 3 === 0;
}
function asText(part) {
	return isDelimiter(part) ? part.mark.repeat(part.count) : part;
}
var depthOf = (children) => children.reduce((most, child) => Math.max(most, typeof child === "object" && "depth" in child ? child.depth : 0), 0);
function wrapped(type, children) {
	const depth = depthOf(children) + 1;
	return depth > MAX_DEPTH ? children : [{
		type,
		depth,
		children
	}];
}
function link(address, children) {
	return {
		type: "link",
		depth: depthOf(children) + 1,
		address,
		children
	};
}
/** Parse an address in parentheses. Its title, if any, is ignored. */
function targetAt(text, from) {
	let at = from;
	let open = 0;
	const limit = Math.min(text.length, from + MAX_ADDRESS_LENGTH);
	for (; at < limit; at += 1) {
		const char = text[at] ?? "";
		if (char.trim() === "" || char === "<") break;
		if (char === "(") open += 1;
		if (char === ")" && open-- === 0) break;
	}
	const address = text.slice(from, at);
	const title = /[ \t]+(?:"[^"\n]{0,200}"|'[^'\n]{0,200}')[ \t]*/y;
	title.lastIndex = at;
	at += title.exec(text)?.[0].length ?? 0;
	return address && text[at] === ")" ? {
		address,
		end: at + 1
	} : void 0;
}
/** Remove punctuation that follows an address in a sentence. */
function withoutTail(address) {
	let end = address.length;
	let surplus = 0;
	for (const char of address) surplus += char === ")" ? 1 : char === "(" ? -1 : 0;
	for (; end > 0; end -= 1) {
		const char = address[end - 1] ?? "";
		if (char === ")" && surplus > 0) surplus -= 1;
		else if (!/[.,;:!?'*_~\]]/.test(char)) break;
	}
	return address.slice(0, end);
}
/** Return an address of a web page or an email. Returns null for any other address. */
function safeAddress(address) {
	if (!URL.canParse(address)) return null;
	const url = new URL(address);
	return [
		"http:",
		"https:",
		"mailto:"
	].includes(url.protocol) ? url.href : null;
}
var NAMED = {
	amp: "&",
	lt: "<",
	gt: ">",
	quot: "\"",
	apos: "'",
	nbsp: "\xA0",
	copy: "©",
	hellip: "…",
	mdash: "—",
	ndash: "–",
	times: "×",
	rarr: "→",
	larr: "←",
	euro: "€",
	deg: "°"
};
/** Return the character of a character reference, or undefined if it is not valid. */
function resolveReference([, decimal, hex, name]) {
	if (name !== void 0) return Object.hasOwn(NAMED, name) ? NAMED[name] : void 0;
	const point = decimal !== void 0 ? Number(decimal) : Number.parseInt(hex ?? "", 16);
	return point > 0 && point <= 1114111 && !(point >= 55296 && point <= 57343) ? String.fromCodePoint(point) : void 0;
}
//#endregion
//#region client/src/markdown-elements.ts
/**
* Renders a Markdown tree as elements of any kind, such as DOM nodes or nodes of a framework. It never writes HTML, so
* none can be injected.
*/
/** Headings in a message start at `h3`, because the page around it uses `h1` and `h2`. */
var HEADING_OFFSET = 2;
function renderMarkdown(blocks, factory) {
	return blocks.map((block) => renderBlock(block, factory));
}
function renderBlock(block, factory) {
	const { element } = factory;
	switch (block.type) {
		case "paragraph": return element("p", {}, renderInline(block.text, factory));
		case "heading": return element(`h${Math.min(6, block.depth + HEADING_OFFSET)}`, {}, renderInline(block.text, factory));
		case "code": return factory.codeBlock(block.language, block.code);
		case "quote": return element("blockquote", {}, renderMarkdown(block.blocks, factory));
		case "list": {
			const items = block.items.map((item) => element("li", {}, renderItem(item, factory)));
			return block.start === null ? element("ul", {}, items) : element("ol", { start: `${block.start}` }, items);
		}
		case "table": return renderTable(block, factory);
		case "rule": return element("hr", {}, []);
	}
}
/** Render a list item. Its first paragraph is inline, next to the list marker. */
function renderItem({ done, blocks }, factory) {
	const [first, ...rest] = blocks;
	const text = first?.type === "paragraph" ? renderInline(first.text, factory) : [];
	const below = first?.type === "paragraph" ? rest : blocks;
	return [
		...renderTask(done, factory),
		...text,
		...renderMarkdown(below, factory)
	];
}
function renderTask(done, { element }) {
	if (done === void 0) return [];
	return [element("span", { "aria-hidden": "true" }, [done ? "☑ " : "☐ "]), element("span", { class: "unseen" }, [done ? "done: " : "to do: "])];
}
function renderTable({ head, rows }, factory) {
	const { element } = factory;
	const renderRow = (tag, cells) => element("tr", {}, cells.map((cell) => element(tag, {}, renderInline(cell, factory))));
	return element("div", {
		class: "scroll",
		tabindex: "0",
		role: "region",
		"aria-label": "Table"
	}, [element("table", {}, [element("thead", {}, [renderRow("th", head)]), element("tbody", {}, rows.map((row) => renderRow("td", row)))])]);
}
function renderInline(parts, factory) {
	return parts.flatMap((part) => renderPart(part, factory));
}
function renderPart(part, factory) {
	if (typeof part === "string") return [part];
	switch (part.type) {
		case "strong":
		case "em":
		case "del": return [factory.element(part.type, {}, renderInline(part.children, factory))];
		case "code": return [factory.element("code", {}, [part.code])];
		case "break": return [factory.element("br", {}, [])];
		case "link": return renderLink(part, factory);
	}
}
function renderLink(link, factory) {
	const label = renderInline(link.children, factory);
	const address = safeAddress(link.address);
	if (address === null) return factory.unsafeLink(link, label);
	const attributes = {
		href: address,
		title: address,
		target: "_blank",
		rel: "noopener noreferrer nofollow"
	};
	return [factory.element("a", attributes, label)];
}
//#endregion
export { ApiError, Breadcrumbs, Client, EventStream, Outbox, Sessions, SseParser, describeFailure, isKeyExpired, messageOf, newId, parseMarkdown, renderMarkdown, retryDelay, safeAddress, sentence, splitMarkdown, tokenClaims, withQuery };
