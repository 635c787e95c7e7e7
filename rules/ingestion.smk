rule ingestion:
    """Read raw files into documents; a unit per file."""
    input:
        DAG.inputs("ingestion"),
    output:
        DAG.stamp("ingestion"),
    log:
        DAG.log("ingestion"),
    benchmark:
        DAG.benchmark("ingestion")
    conda:
        "../environment.yml"
    threads: DAG.threads("ingestion")
    resources:
        mem_mb=DAG.memory("ingestion"),
    shell:
        "{JOB} --plan {PLAN} --node ingestion --work {wildcards.work} > {log:q} 2>&1"
