"""Texts with their number of o200k tokens, counted with bpe-openai 0.1.4. The estimate was not tuned on them."""

from __future__ import annotations

SAMPLES: dict[str, tuple[int, str]] = {
    "English prose": (
        98,
        "The old lighthouse keeper had counted ships for forty years, and every evening he wrote the number into "
        "a green notebook. When the automatic lamp was installed, nobody asked him to stop, so he went on. Visitors "
        "found it charming; the harbour authority found it useful, because his figures were more reliable than "
        "theirs. After his death the notebooks were given to a small museum, where schoolchildren now compare them "
        "with satellite data and discover, year after year, that he had hardly ever been wrong.",
    ),
    "English chat": (
        47,
        "hey, quick question: my invoice from last month still shows the old address, can you fix that? I changed it "
        "in my profile on the 3rd I think. Also is there any way to download all invoices at once?",
    ),
    "Go code": (
        113,
        """package main

import (
	"fmt"
	"net/http"
	"strings"
)

type Handler struct {
	Prefix string
	Routes map[string]http.HandlerFunc
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, h.Prefix)
	if route, ok := h.Routes[path]; ok {
		route(w, r)
		return
	}
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprintf(w, "no route for %q\\n", path)
}
""",
    ),
    "Python code": (
        172,
        '''class LruCache(Generic[K, V]):
    """Forgets what was not used for longest."""

    def __init__(self, capacity: int = 128) -> None:
        if capacity <= 0:
            raise ValueError("capacity must be positive")
        self._capacity = capacity
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, default: V | None = None) -> V | None:
        try:
            self._entries.move_to_end(key)
            return self._entries[key]
        except KeyError:
            return default

    def put(self, key: K, value: V) -> None:
        self._entries[key] = value
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
''',
    ),
    "compact JSON": (
        131,
        '{"station":"Porto-Campanha","updated":"2026-11-16T07:40:00Z","departures":[{"train":"IC 523","to":"Lisboa",'
        '"platform":4,"delay_minutes":0,"cancelled":false},{"train":"U 15771","to":"Braga","platform":11,'
        '"delay_minutes":7,"cancelled":false},{"train":"R 6403","to":"Aveiro","platform":2,"delay_minutes":null,'
        '"cancelled":true}],"notices":["Lift out of service"],"source":{"name":"timetable","version":"1.8.2"}}',
    ),
    "indented JSON": (
        117,
        """{
  "name": "weather",
  "description": "Current weather for a place",
  "parameters": {
    "type": "object",
    "properties": {
      "place": {"type": "string", "minLength": 1},
      "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}
    },
    "required": ["place"],
    "additionalProperties": false
  },
  "timeout_seconds": 20,
  "return_to_llm": true
}""",
    ),
    "German prose": (
        105,
        "Der alte Leuchtturmwärter hatte vierzig Jahre lang Schiffe gezählt und die Zahl jeden Abend in ein grünes "
        "Heft geschrieben. Als die selbsttätige Lampe eingebaut wurde, bat ihn niemand aufzuhören, also machte er "
        "weiter. Besucher fanden es reizend; die Hafenverwaltung fand es nützlich, denn seine Angaben waren "
        "zuverlässiger als ihre eigenen. Nach seinem Tod kamen die Hefte in ein kleines Heimatmuseum, wo Schulkinder "
        "sie heute mit Satellitenaufnahmen vergleichen.",
    ),
    "German chat": (
        36,
        "Guten Morgen, auf meiner letzten Rechnung steht noch die alte Adresse. Könnten Sie das bitte ändern? Außerdem "
        "würde ich gern alle Rechnungen auf einmal herunterladen, geht das irgendwie?",
    ),
    "Chinese prose": (
        100,
        "老灯塔看守人数了四十年的船,每天晚上都把数字写进一本绿色的笔记本里。自动灯安装好以后,没有人叫他停下来,"
        "所以他就继续数下去。游客觉得很有趣,港务局觉得很有用,因为他的数字比他们自己的更可靠。"
        "他去世以后,笔记本被送到一家小博物馆,现在学生们把它们和卫星数据进行比较。",
    ),
    "Chinese chat": (
        42,
        "您好,我上个月的发票上还是旧地址,可以帮我改一下吗?我三号的时候已经在个人资料里改过了。另外,能不能一次下载所有发票?",
    ),
    "emoji": (
        47,
        "Happy birthday!! 🎂🎈🎁 hope you have an amazing day 🥳❤️ we're at the beach 🏄🌊☀️ wish you were here 😢 "
        "call me later 📞 love you 😘😘",
    ),
    "Japanese prose": (
        98,
        "年老いた灯台守は四十年間、船の数を数え、毎晩その数を緑色のノートに書きつけていました。自動の灯りが取り付けられたとき、"
        "誰もやめるように言わなかったので、彼はそのまま続けました。観光客はそれを面白がり、港の役所は役に立つと思いました。",
    ),
    "Russian prose": (
        78,
        "Старый смотритель маяка сорок лет считал корабли и каждый вечер записывал число в зелёную тетрадь. Когда "
        "поставили автоматическую лампу, никто не попросил его перестать, и он продолжал. Туристам это казалось милым, "
        "а управлению порта полезным, потому что его цифры были надёжнее.",
    ),
    "French prose": (
        70,
        "Le vieux gardien du phare avait compté les navires pendant quarante ans et, chaque soir, il notait le nombre "
        "dans un cahier vert. Quand on installa la lampe automatique, personne ne lui demanda d'arrêter; il continua "
        "donc. Les visiteurs trouvaient cela charmant, et la capitainerie le trouvait utile.",
    ),
    "Markdown": (
        78,
        """## What changed

- **Faster**: listing by tag is about *twice* as fast (see [#214](https://example.com/issues/214)).
- `--json` works for every command now.
- Fixed: a crash when the file was empty.

1. Upgrade with `pip install -U example==2.4.0`
2. Restart.
""",
    ),
}
