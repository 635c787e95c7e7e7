rule heldout:
    """Draw the held-out documents, before any filter."""
    input:
        DAG.inputs("heldout"),
    output:
        DAG.stamp("heldout"),
    log:
        DAG.log("heldout"),
    benchmark:
        DAG.benchmark("heldout")
    conda:
        "../environment.yml"
    threads: DAG.threads("heldout")
    resources:
        mem_mb=DAG.memory("heldout"),
    shell:
        "{JOB} --plan {PLAN} --node heldout --work {wildcards.work} > {log:q} 2>&1"


rule filtering_scores:
    """Compute the scores of every document."""
    input:
        DAG.inputs("filtering.scores"),
    output:
        DAG.stamp("filtering.scores"),
    log:
        DAG.log("filtering.scores"),
    benchmark:
        DAG.benchmark("filtering.scores")
    conda:
        "../environment.yml"
    threads: DAG.threads("filtering.scores")
    resources:
        mem_mb=DAG.memory("filtering.scores"),
    shell:
        "{JOB} --plan {PLAN} --node filtering.scores --work {wildcards.work} > {log:q} 2>&1"


rule filtering:
    """Apply thresholds to scores."""
    input:
        DAG.inputs("filtering"),
    output:
        DAG.stamp("filtering"),
    log:
        DAG.log("filtering"),
    benchmark:
        DAG.benchmark("filtering")
    conda:
        "../environment.yml"
    threads: DAG.threads("filtering")
    resources:
        mem_mb=DAG.memory("filtering"),
    shell:
        "{JOB} --plan {PLAN} --node filtering --work {wildcards.work} > {log:q} 2>&1"
