"""A chain of two jobs, and a build of it without Snakemake: what decides, restores and ingests is real."""

from pathlib import Path

from ingot.driver.cache.contents import Contents
from ingot.driver.cache.decide import Decider
from ingot.driver.cache.ingest import Ingest
from ingot.driver.cache.restore import restore
from ingot.driver.catalogue.job import Graph, Input, Job, Output
from ingot.driver.forecast.costs import Costs
from ingot.driver.forecast.past import Past
from ingot.store.records import Store

SHELL = "tool --in {input.source:q} --mode {params.mode} --out {output:q}"


def job(source, output, mode="fast", **more):
    return Job(
        rule=f"make_{Path(output).suffix[1:]}",
        shell=SHELL,
        inputs=(Input("source", (source,)),),
        outputs=(Output("", output),),
        params={"mode": mode},
        **more,
    )


def chain(mode="fast", forced=()):
    """a.txt -> b.one -> c.two; c.two is asked for."""
    first, second = job("a.txt", "b.one", mode), job("b.one", "c.two")
    return Graph(
        jobs=[first, second],
        needs={first: {}, second: {first: {"b.one"}}},
        targets=[second],
        target_files={"c.two"},
        forced={one for one in (first, second) if one.writes[0] in forced},
    )


class Run:
    """A build without Snakemake: `contents(text)` stands for the tools."""

    def __init__(self, graph):
        self.graph, self.contents = graph, Contents(graph, Store())
        self.decider = Decider(self.contents)
        costs = Costs({"models": {}}, Path(), Past(None))
        self.ingest = Ingest(self.contents, costs, lambda _: {})
        self.ran = []

    def decide(self):
        return self.decider.decide(self.contents.finished)

    def build(self, write=lambda path, text: f"{path} of {text}"):
        while decision := self.decide():
            assert not restore(self.contents, decision)
            ready = [
                one
                for one in decision.run
                if not any(maker in decision.run for maker in self.graph.needs[one])
            ]
            if not ready:
                return self
            text = Path(ready[0].reads[0]).read_text()
            Path(ready[0].writes[0]).unlink(missing_ok=True)  # it may be a link of the store
            Path(ready[0].writes[0]).write_text(write(ready[0].writes[0], text))
            self.ran.append(ready[0].writes[0])
            self.ingest.finished(ready[0])
